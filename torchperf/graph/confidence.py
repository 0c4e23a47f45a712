"""How far measured runs of a class, one GPU with one runtime, were from what is said of them."""

from __future__ import annotations

from dataclasses import dataclass

ANY = "any"  # all GPUs, or all runtimes


@dataclass(frozen=True, slots=True)
class ErrorClass:
    """Absolute errors of the measured runs of one metric on one GPU with one runtime; either may be `any`.

    metric          step_time | memory | ttft | tpot | latency | throughput | forward_time
    roofline_*      those of a plain roofline on the same rows; None where there is none
    sources         keys of the sources of the runs, as the maps of `torchperf validate` name them
    """

    metric: str
    gpu: str
    runtime: str
    rows: int
    median_error: float
    p90_error: float
    sources: tuple[str, ...]
    roofline_median: float | None = None
    roofline_p90: float | None = None


@dataclass(frozen=True, slots=True)
class Confidence:
    """What measured runs tell of one figure.

    found   errors of the class asked for; failing that of a wider one; None where there is none
    exact   whether it is the class asked for
    """

    metric: str
    gpu: str
    runtime: str
    found: ErrorClass | None
    exact: bool
