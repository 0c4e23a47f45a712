"""What both kinds of context parallelism need of one block: new storages, and ops that stand beside attention."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..graph.dtype import nbytes
from ..graph.graph import Block
from ..graph.op import Attr, Op
from ..graph.tensor import Storage, Value

BATCH, HEADS, LENGTH, WIDTH = range(4)  # dims of query, key, value and out
SEQUENCE_FIRST = (LENGTH, BATCH, HEADS, WIDTH)  # the order in memory in which what each peer gets is one piece


@dataclass(frozen=True, slots=True)
class Group:
    """The ranks that share a sequence: `ranks` of them on the axis, `stride` devices apart."""

    axis: str
    ranks: int
    stride: int = 1

    def attrs(self, role: str) -> tuple[tuple[str, Attr], ...]:
        """What a collective of this group carries."""
        return (("axis", self.axis), ("ranks", self.ranks), ("stride", self.stride), ("role", role))


class Scratch:
    """The storages of a block, and those that the rewrite adds behind them.

    shared   of each added slot: (slot of a call's logsumexp, role) where forward and backward use the same storage,
             else None. The logsumexp is what tells one call of attention from another.
    """

    def __init__(self, block: Block) -> None:
        self.storages: list[Storage] = list(block.storages)
        self.shared: list[tuple[int, str] | None] = []
        self._kept: dict[tuple[int, str], int] = {}

    def new(self, dtype: str, shape: Sequence[int], order: Sequence[int] | None = None) -> Value:
        """A value in a storage of its own, which dies with its last reader in the block."""
        self.storages.append(Storage(nbytes(math.prod(shape), dtype), "activation"))
        self.shared.append(None)
        return dense(len(self.storages) - 1, dtype, shape, order)

    def kept(self, call: int, role: str, dtype: str, shape: Sequence[int]) -> Value:
        """A value that forward writes and backward reads; `call` is the slot of the call's logsumexp."""
        slot = self._kept.get((call, role))
        if slot is None:
            slot = self._kept[call, role] = self.new(dtype, shape).slot
            self.shared[-1] = (call, role)
        return dense(slot, dtype, shape, SEQUENCE_FIRST)


def dense(slot: int, dtype: str, shape: Sequence[int], order: Sequence[int] | None = None) -> Value:
    """A value without gaps; `order` are its dims from the slowest in memory to the fastest."""
    strides, step = [0] * len(shape), 1
    for d in reversed(order if order is not None else range(len(shape))):
        strides[d] = step
        step *= shape[d]
    return Value(slot, dtype, tuple(shape), tuple(strides))


def beside(
    op: Op, name: str, operands: Sequence[tuple[str, Value]], output: Value, attrs: tuple[tuple[str, Attr], ...] = ()
) -> Op:
    """An op of one result in the phase and module of `op`."""
    names, values = zip(*operands, strict=True)
    return Op(name, op.phase, op.module, names, values, (output,), attrs)


def ints(value: Value) -> tuple[int, ...]:
    """Dims of a bound value."""
    return value.shape  # type: ignore[return-value]
