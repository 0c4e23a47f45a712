"""Graph + plan -> what each rank runs: dims are lists of factors, a plan shards factors, collectives follow."""
