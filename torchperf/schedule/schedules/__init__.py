"""Order of the micro-batches in a pipeline, one file a schedule."""
