"""What every fit shares: rows held out by hash and the errors on them."""
THIRDS=3
Row=dict
def held_out(): ...
