"""An estimate beside measured runs: the error of its class, GPU and runtime, or of a wider one that is told as such."""

from __future__ import annotations

from .graph.confidence import ANY, Confidence, ErrorClass
from .hardware.validated import validated

METRICS = {
    "train": ("training", ("step_time", "memory")),
    "forward": ("inference", ("forward_time",)),
    "inference": ("inference", ("ttft", "tpot", "latency", "throughput")),
}


def confidence(mode: str, gpu: str, runtime: str) -> tuple[Confidence, ...]:
    """One for each figure of the mode: train | forward | inference."""
    kind, metrics = METRICS[mode]
    classes = validated(kind)
    return tuple(_of(metric, gpu, runtime, classes) for metric in metrics)


def _of(metric: str, gpu: str, runtime: str, classes: tuple[ErrorClass, ...]) -> Confidence:
    """The same runtime on other GPUs comes before other runtimes on the same GPU."""
    known = {(c.gpu, c.runtime): c for c in classes if c.metric == metric}
    for key in ((gpu, runtime), (ANY, runtime), (gpu, ANY)):
        if key in known:
            return Confidence(metric, gpu, runtime, known[key], ANY not in key)
    return Confidence(metric, gpu, runtime, None, False)
