"""Sequence parallelism at one op: whether it runs split along the sequence, or needs the whole of it."""

from __future__ import annotations

from .algebra import Dims
from .masks import Split
from .prepare import Prepared
from .step import ADDITIVE, OpFactors


def holds(dims: Dims, split: Split) -> bool:
    """Whether a sequence leaf is in any of these dims."""
    return split.times_sequence(dims) > 0


def needs_whole(facts: OpFactors, split: Split, on_axis: bool) -> bool:
    """Whether the op must read its inputs whole: it is split over the axis itself, mixes positions, or loses them."""
    if on_axis or not facts.known or holds(facts.opaque, split) or holds([d for d, _ in facts.statistic], split):
        return True
    for j, dims in enumerate(facts.outputs):
        times, sums = split.times_sequence(dims), holds(facts.contracted[j], split)
        if times > 1 or (sums and facts.kind == "lookup"):
            return True
        if times == 0 and not sums and facts.op.outputs[j].numel > 1:
            return True
    return False


def joins_more(prepared: Prepared, b: int, i: int, facts: OpFactors) -> bool:
    """Whether the sum that this op makes is read once, by another addition: one reduce-scatter then serves both."""
    slot = facts.op.outputs[0].slot
    if slot in prepared.escapes[b]:
        return False
    readers = [j for j in prepared.readers.get((b, slot), ()) if j > i]
    return len(readers) == 1 and prepared.factors.blocks[b][readers[0]].linear == ADDITIVE
