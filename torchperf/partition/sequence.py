"""Sequence parallelism at one op: whether it runs split along the sequence, or needs the whole of it."""

from __future__ import annotations

from .algebra import Dims
from .masks import Split
from .prepare import Prepared
from .step import ADDITIVE, NONLINEAR, OpFactors


def holds(dims: Dims, split: Split) -> bool:
    """Whether a sequence leaf is in any of these dims."""
    return split.times_sequence(dims) > 0


def needs_whole(facts: OpFactors, split: Split, on_axis: bool, routed: bool = False) -> bool:
    """Whether the op must read its inputs whole: it is split over the axis itself, mixes positions, or loses them.

    routed   each rank mixes and loses its own, on their way through experts that every rank has whole
    """
    if on_axis or not facts.known:
        return True
    if routed:
        return False
    if holds(facts.opaque, split) or holds([d for d, _ in facts.statistic], split):
        return True
    for j, dims in enumerate(facts.outputs):
        times, sums = split.times_sequence(dims), holds(facts.contracted[j], split)
        if times > 1 or (sums and facts.kind == "lookup"):
            return True
        if times == 0 and not sums and facts.op.outputs[j].numel > 1:
            return True
    return False


def left(facts: OpFactors, j: int, split: Split, routed: bool) -> tuple[int, bool]:
    """(bits of a sum still to be done, whether it lies along the sequence) of output j of an op that runs split.

    A routed op may look rows up by rows: what is contracted, too, is its own.
    """
    once = split.times_sequence(facts.outputs[j]) == 1
    if holds(facts.contracted[j], split) and not (routed and once):
        return split.full, False
    return 0, once


def joins_more(prepared: Prepared, split: Split, b: int, i: int, facts: OpFactors, waiting: set[int]) -> bool:
    """Whether the sum that this op makes is read once, by an addition to another: one reduce-scatter then serves both.

    waiting   slots with a sum still to be done, at op `i`
    """
    slot = facts.op.outputs[0].slot
    if slot in prepared.escapes[b]:
        return False
    readers = [j for j in prepared.readers.get((b, slot), ()) if j > i]
    if len(readers) != 1 or prepared.factors.blocks[b][readers[0]].linear != ADDITIVE:
        return False
    others = {value.slot for value in prepared.factors.blocks[b][readers[0]].op.inputs} - {slot}
    return any(_waits(prepared, split, b, other, range(i + 1, readers[0]), waiting) for other in others)


def _waits(prepared: Prepared, split: Split, b: int, slot: int, ops: range, waiting: set[int]) -> bool:
    """Whether a storage will hold a sum still to be done after these ops."""
    records, views = prepared.factors.blocks[b], prepared.views[b]
    maker = next((j for j in reversed(ops) if not views[j] and slot in (v.slot for v in records[j].op.outputs)), None)
    if maker is None:
        return slot in waiting
    facts = records[maker]
    if any(split.mask_of(dims) for dims in facts.contracted):
        return True
    passed = [v.slot for k, v in enumerate(facts.op.inputs) if k in facts.through or facts.linear == ADDITIVE]
    before = range(ops.start, maker)
    return facts.linear != NONLINEAR and any(_waits(prepared, split, b, s, before, waiting) for s in passed)
