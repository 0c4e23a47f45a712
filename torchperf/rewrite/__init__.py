"""Graph -> Graph: precision, form of attention, recompute, optimizer. Passes run on bound graphs."""
