"""Program -> Program: which chains of ops run as one kernel, and hence what is saved for backward."""

from .kernels import fuse

__all__ = ["fuse"]
