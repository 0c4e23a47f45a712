"""Models that no library has any more, and a model named by its dims alone."""
