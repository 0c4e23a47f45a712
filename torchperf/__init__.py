"""torchperf: what a real PyTorch model costs to train or to serve, on hardware you do not have.

import torchperf

capture = torchperf.capture("llama-3.1-8b")          # or a live nn.Module and its inputs
answer = torchperf.estimate(capture, gpu="h100-sxm-80gb", seq_len=4096)
answer.verdict, answer.step_time_s, answer.memory.peak
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .api import capture, estimate_inference, load, save
    from .graph.errors import TorchperfError
    from .inspection import inspect
    from .measured_run import mfu
    from .pipeline import estimate
    from .rank_program import split

__version__ = "0.1.0"
__all__ = [
    "TorchperfError",
    "__version__",
    "capture",
    "estimate",
    "estimate_inference",
    "inspect",
    "load",
    "mfu",
    "save",
    "split",
]

_PLACES = {
    "capture": "api",
    "estimate_inference": "api",
    "load": "api",
    "save": "api",
    "estimate": "pipeline",
    "inspect": "inspection",
    "mfu": "measured_run",
    "split": "rank_program",
    "TorchperfError": "graph.errors",
}


def __getattr__(name: str) -> Any:
    """Public names are imported when they are first asked for: the command line starts without numpy and torch."""
    if name in _PLACES:
        from importlib import import_module

        return getattr(import_module(f".{_PLACES[name]}", __name__), name)
    raise AttributeError(f"module `torchperf` has no attribute `{name}`")


def __dir__() -> list[str]:
    return sorted(__all__)
