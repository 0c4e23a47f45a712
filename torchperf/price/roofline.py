"""The plain roofline: what no kernel is faster than, and the yardstick beside every better price.

seconds = max(flops / peak, bytes / bandwidth)

ignores  floors, tiles, caches: too fast by a median of 34 to 52 % on measured GEMMs, 65 to 97 % on attention
source   [williams2009]
"""

from __future__ import annotations

from ..graph.system import Accelerator
from ..graph.work import Work


def roofline(work: Work, accelerator: Accelerator) -> float:
    """Seconds at full peak and bandwidth."""
    memory = work.nbytes / accelerator.memory.bandwidth.value
    if work.engine != "matrix" or not work.flops_executed:
        return memory
    engine = accelerator.matmul_engine(work.dtype)
    return max(memory, work.flops_executed / accelerator.peak_flops_per_s(engine, work.dtype))
