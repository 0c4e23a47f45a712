"""Ops that move bytes and compute little: pointwise, norms, softmax, rope, embedding, quantise, copies, optimizer.

seconds = floor + max(bytes / (e_m bandwidth (1 + (l2_ratio - 1) residence)), flops / vector peak)

bytes      read and written, each once              residence  1 / (1 + (bytes / L2)^8) where tensors may lie in the L2
ignores    rows too few for the SMs, strides, atomics that meet
error      per device and kind with each fit, on rows held out of it
source     [williams2009] roofline; constants fitted to the rows that each fit names
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..graph.price import Price, Term
from ..graph.system import Accelerator, Fit
from ..graph.work import Work
from .residence import residence

Floats = NDArray[np.float64]
MEMORY = "bytes / (e_m bandwidth (1 + (l2_ratio - 1) residence))"
# kind of op (annotate.KINDS) -> whose constants it takes; every other kind takes those of `elementwise`
KERNEL = {"norm": "rows", "softmax": "rows", "loss": "rows", "gather": "gather", "quantise": "quantize"}


@dataclass(frozen=True, slots=True)
class Constants:
    """Constants of one kind of kernel on one device.

    floor     seconds that the kernel takes with nothing to move
    e_m       share of the bandwidth
    l2_ratio  bandwidth where the tensors lie in the L2 over that where they do not, at least 1
    """

    floor: float
    e_m: float
    l2_ratio: float

    @classmethod
    def of(cls, fit: Fit) -> Constants:
        """Read by name; KeyError where the fit lacks one."""
        return cls(*(fit[field.name] for field in fields(cls)))


class Parts(NamedTuple):
    """Seconds of a price: floor + max(memory, compute); `resident` is the share that the L2 serves."""

    floor: Floats
    memory: Floats
    compute: Floats
    resident: Floats

    @property
    def seconds(self) -> Floats:
        """Time of the kernel."""
        return self.floor + np.maximum(self.memory, self.compute)


def parts(
    nbytes: Floats, flops: Floats, c: Constants, bandwidth: float, l2: float, vector: float, resident: bool = False
) -> Parts:
    """The formula of this module, over arrays; `vector` is the FLOP/s of the vector engine."""
    share = residence(nbytes, l2, resident)
    memory = nbytes / (c.e_m * bandwidth * (1 + (c.l2_ratio - 1) * share))
    return Parts(np.full_like(nbytes, c.floor), memory, flops / vector, share)


def fit_of(accelerator: Accelerator, kernel: str) -> Fit:
    """`memory.<kernel>`; failing that `memory.elementwise`, and a TorchperfError where there is neither."""
    return accelerator.find_fit(f"memory.{kernel}") or accelerator.fit("memory.elementwise")


def price(work: Work, accelerator: Accelerator, kernel: str = "default", resident: bool = False) -> Price:
    """Device time of one memory-bound op.

    kernel    `elementwise`, `rows`, `gather`, `quantize`, or a serving library's own: `rope`, `gated`;
              `default` goes by the kind of the op
    resident  the tensors may still lie in the L2: made just before, or used again and again by a benchmark
    raises    TorchperfError where the device has no fit
    """
    fit = fit_of(accelerator, KERNEL.get(work.kind, "elementwise") if kernel == "default" else kernel)
    bandwidth, l2 = accelerator.memory.bandwidth, accelerator.memory.l2
    dtype = work.dtype if work.dtype in accelerator.dtypes("vector") else "fp32"
    flops = float(work.flops_executed) if work.engine == "vector" else 0.0
    peak = accelerator.peak("vector", dtype) if flops else bandwidth
    one = parts(
        np.array([float(work.nbytes)]), np.array([flops]), Constants.of(fit), bandwidth.value, l2.value, peak.value,
        resident,
    )  # fmt: skip
    floor, memory, compute, share = (float(part[0]) for part in one)
    terms = (
        Term("floor", floor, "floor", (fit.source,), (("floor", floor),), (fit.name,)),
        Term(
            "memory", memory, MEMORY, (fit.source, bandwidth.source),
            (("bytes", float(work.nbytes)), ("e_m", fit["e_m"]), ("bandwidth", bandwidth.value),
             ("l2_ratio", fit["l2_ratio"]), ("residence", share)),
            (fit.name, "memory.bandwidth"),
        ),
        Term(
            "compute", compute, "flops / vector_peak", (peak.source,) if flops else (),
            (("flops", flops), ("vector_peak", peak.value)), (f"peak.vector.{dtype}",) if flops else (),
        ),
    )  # fmt: skip
    seconds = floor + max(memory, compute)
    if floor > seconds - floor:
        bound = "launch"
    elif compute > memory:
        bound = "compute"
    else:
        bound = "l2" if share > 0.5 else "hbm"
    return Price(seconds, bound, terms)
