"""The nouns. No torch, no I/O, no imports from the other rooms."""
