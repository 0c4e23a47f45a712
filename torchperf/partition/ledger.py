"""What placement writes down of one block: its collectives, its conflicts, and the work that a rank is spared."""

from __future__ import annotations

import math

from ..graph.tensor import Value
from .algebra import Dims
from .collective import Collective
from .masks import Split
from .prepare import Prepared
from .state import WHOLE, BlockPlaced, Crossing, State
from .step import OpFactors


class Ledger:
    """The book of block `b`."""

    def __init__(self, prepared: Prepared, split: Split, b: int, entry: dict[int, Crossing]) -> None:
        self.prepared, self.split, self.b = prepared, split, b
        self.block = prepared.factors.graph.blocks[b]
        self.out = BlockPlaced(entry)

    def _routed(self, i: int) -> bool:
        """Whether the op keeps to the rank's own rows of experts."""
        return bool(self.split.routed) and i in self.split.routed[self.b]

    def _class(self, slot: int) -> int:
        return self.prepared.factors.classes.of[self.b][slot]

    def _saved(self, slot: int) -> bool:
        """Whether a forward block made this storage."""
        blocks = self.prepared.factors.graph.blocks
        return any(blocks[b].phase == "forward" for b, _ in self.prepared.members[self._class(slot)])

    def _count(self, i: int, facts: OpFactors, whole: int, inputs: list[State], outputs: list[State]) -> None:
        """Work that this rank is spared."""
        flops, moved = self.prepared.flops[self.b][i], self.prepared.moved[self.b][i]
        if not flops and not moved:
            return
        held = [self.split.held(dims)[0] & ~whole for dims in (*facts.inputs, *facts.outputs)]
        mask = 0
        for own in held:
            mask |= own
        for contracted in facts.contracted:
            mask |= self.split.mask_of(contracted)
        mask &= ~whole
        states = (*inputs, *outputs)
        for k, state in enumerate(states):
            if state is not WHOLE:
                held[k] |= state.ragged | (self.split.full if state.sequence else 0)
                mask |= held[k]
        if not mask:
            return
        self.out.flops += flops * (1 - 1 / self.split.degree(mask))
        if moved:
            local = 0.0
            for nbytes, own in zip(self.prepared.nbytes[self.b][i], held, strict=True):
                local += nbytes / self.split.degree(own)
            self.out.moved += moved - local

    def _conflict(self, facts: OpFactors, text: str) -> None:
        self.out.conflicts.append(f"{facts.op.name} in {facts.op.module or 'the model'}: {text}")

    def _statistics(self, i: int, facts: OpFactors, whole: int, sequence: bool) -> None:
        for dim, nbytes in facts.statistic:
            mask = self.split.of(dim)[0] & ~whole
            if mask:
                rest = self.split.degree(self.split.held(facts.inputs[0])[0] & ~mask & ~whole)
                shape = (nbytes // 4 // rest,)
                self._emit("all_reduce", mask, i, facts.op.inputs[0].slot, (shape, shape), "fp32", nbytes // rest,
                           "statistic", facts.op.name)  # fmt: skip

    def _collective(
        self, kind: str, mask: int, i: int, value: Value, dims: Dims, role: str, cause: str, whole: int = 0
    ) -> None:
        shape = tuple(self.split.local(dim, whole) for dim in dims)
        nbytes = value.nbytes * math.prod(shape) // max(value.numel, 1)
        along = kind == "reduce_scatter" or (kind == "all_gather" and not whole)
        part = shape if kind == "all_reduce" else tuple(self.split.local(dim, 0, along) for dim in dims)
        self._emit(kind, mask, i, value.slot, (shape, part), value.dtype, nbytes, role, cause)

    def _emit(
        self,
        kind: str,
        mask: int,
        i: int,
        slot: int,
        shapes: tuple[tuple[int, ...], tuple[int, ...]],
        dtype: str,
        nbytes: int,
        role: str,
        cause: str,
    ) -> None:
        ranks, count = self.split.degree(mask), self.prepared.counts[self.b]
        self.out.collectives.append(
            Collective(
                kind,
                self.split.axis,
                ranks,
                mask,
                self.block.phase,
                self.b,
                i,
                count,
                slot,
                *shapes,
                dtype,
                nbytes,
                role,
                cause,
            )
        )
