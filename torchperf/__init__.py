"""torchperf: what a real PyTorch model costs to train or to serve, on hardware you do not have."""

__version__ = "0.1.0"
