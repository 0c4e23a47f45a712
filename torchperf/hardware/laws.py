"""What no record may break, though each of its values may be well formed: order, ridge point, capacity."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

from ..graph.system import Accelerator, Interconnect

EXCEPTION = "exception"  # the word by which the condition of a peak says that the vendor breaks the order
LADDERS = (("bf16", "fp8", "fp4"), ("tf32", "bf16"), ("tf32", "fp16"), ("bf16", "int8"))
NARROW = ("bf16", "fp16", "fp8", "fp4", "int8")
RIDGE = (10.0, 2000.0)  # FLOP/B
Broken = Iterator[tuple[str, str]]  # key of the record, what is wrong


def narrower_is_not_slower(device: Accelerator) -> Broken:
    """Dense matrix peaks rise from bf16 to fp8 to fp4, unless the condition of one states the exception."""
    for ladder in LADDERS:
        steps = [dtype for dtype in ladder if dtype in device.dtypes("matrix")]
        for wide, narrow in pairwise(steps):
            above, below = device.peak("matrix", wide), device.peak("matrix", narrow)
            if below.value < above.value and EXCEPTION not in below.condition + above.condition:
                yield (
                    f"peak.matrix.{narrow}",
                    f"{below.value:.4g} FLOP/s is below `{wide}`'s {above.value:.4g}: "
                    f"if the vendor says so, let the condition say `{EXCEPTION}`",
                )


def ridge_is_plausible(device: Accelerator) -> Broken:
    """Matrix peak over memory bandwidth lies within RIDGE for each type of 16 bits and below."""
    for dtype in device.dtypes("matrix"):
        ridge = device.peak_flops_per_s("matrix", dtype) / device.memory.bandwidth.value
        if dtype in NARROW and not RIDGE[0] <= ridge <= RIDGE[1]:
            what = f"{ridge:.4g} FLOP a byte of memory bandwidth is outside {RIDGE[0]:g} to {RIDGE[1]:g}"
            yield f"peak.matrix.{dtype}", what


def usable_is_within_nominal(device: Accelerator) -> Broken:
    """A device shows at most its nominal bytes, and at least nine tenths of them."""
    share = device.memory.usable.value / device.memory.nominal.value
    if not 0.9 <= share <= 1:
        yield "memory.usable", f"{share:.3g} of the nominal, which must be 0.9 to 1"


def cache_is_smaller_and_faster(device: Accelerator) -> Broken:
    """The last cache is a small part of the memory, and not slower than it."""
    memory = device.memory
    if memory.l2.value > 0.02 * memory.nominal.value:
        yield "memory.l2", "more than a fiftieth of the memory"
    if memory.l2_bandwidth and memory.l2_bandwidth.value < memory.bandwidth.value:
        yield "memory.l2_bandwidth", "below the bandwidth of the memory"


def peaks_are_dense(device: Accelerator) -> Broken:
    """The condition of each peak begins with `dense`: a rate that counts zeros is none."""
    for peak in device.peaks:
        condition = peak.flops_per_s.condition
        if not condition.startswith("dense") or "spars" in condition:
            yield f"peak.{peak.engine}.{peak.dtype}.condition", "must begin with `dense`, and tell of no sparsity"


def pair_is_within_all_links(link: Interconnect) -> Broken:
    """Two devices do not exchange more than one can send to all together."""
    if link.pair_bandwidth.value > link.bandwidth.value:
        yield "pair_bandwidth", "above `bandwidth`"


DEVICE_LAWS: tuple[Callable[[Accelerator], Broken], ...] = (
    narrower_is_not_slower,
    ridge_is_plausible,
    usable_is_within_nominal,
    cache_is_smaller_and_faster,
    peaks_are_dense,
)


def broken(record: object) -> list[tuple[str, str]]:
    """Every law that a record breaks, as key and fault; none for a kind without laws."""
    if isinstance(record, Accelerator):
        return [fault for law in DEVICE_LAWS for fault in law(record)]
    return list(pair_is_within_all_links(record)) if isinstance(record, Interconnect) else []
