"""The first price: a floor plus the slower of arithmetic and memory, with one efficiency each.

seconds = floor + max(flops / (e_c * peak), bytes / (e_m * bandwidth))

ignores  tiles, waves, caches: within 20 to 50 % of measured GEMMs (median)
source   [williams2009] roofline; floor and efficiencies from hardware_db, each with its own source
"""

from __future__ import annotations

from ..graph.op import Op
from ..graph.price import Price, Term
from ..graph.system import Runtime, System
from ..graph.work import Work

NOTHING = Price(0.0, "none")


class Pricer:
    """Prices on one system under one runtime; equal work is priced once."""

    def __init__(self, system: System, runtime: Runtime) -> None:
        self.system = system
        self.runtime = runtime
        self._known: dict[tuple[str, str, str, int, int], Price] = {}

    def __call__(self, op: Op, work: Work) -> Price:
        """Device time of `op`, whose work is `work`. Raises TorchperfError where the device lacks the dtype."""
        if work.nbytes == 0 and work.flops_executed == 0:
            return NOTHING
        key = (work.kind, work.engine, work.dtype, work.flops_executed, work.nbytes)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._price(work)
        return known

    def _price(self, work: Work) -> Price:
        device = self.system.accelerator
        floor = Term("floor", device.kernel_floor.value, "floor", (device.kernel_floor.source,))
        share = device.efficiency("memory")
        bandwidth = device.memory.bandwidth
        memory = Term(
            "memory",
            work.nbytes / (share.value * bandwidth.value),
            "bytes / (e_m * bandwidth)",
            (share.source, bandwidth.source),
        )
        compute = self._compute(work)
        longest = max(memory.seconds, compute.seconds)
        bound = "compute" if compute.seconds > memory.seconds else "memory"
        if floor.seconds > longest:
            bound = "launch"
        return Price(floor.seconds + longest, bound, (floor, compute, memory))

    def _compute(self, work: Work) -> Term:
        device = self.system.accelerator
        if work.engine == "none" or work.flops_executed == 0:
            return Term("compute", 0.0, "no arithmetic")
        engine, dtype = work.engine, work.dtype
        if engine == "matrix":
            engine = device.matmul_engine(dtype)
        if engine == "vector":
            dtype = dtype if dtype in device.dtypes("vector") else "fp32"
        peak = device.peak(engine, dtype)
        share = device.efficiency(engine, dtype)
        seconds = work.flops_executed / (share.value * peak.value)
        return Term("compute", seconds, f"flops / (e_c * {engine} peak)", (share.source, peak.source))


def price(op: Op, work: Work, system: System, runtime: Runtime) -> Price:
    """Device time of one op, alone. For many, keep a `Pricer`."""
    return Pricer(system, runtime)(op, work)
