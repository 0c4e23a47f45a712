"""Where a sum still to be done is cheapest: here, or after the linear ops that read it.

The experts' output of a token is [tokens * k, hidden]; weighted and summed over k it is [tokens, hidden]: the sum over
ranks waits. What the look ahead counts is the bytes to be summed, over every reader, in other blocks too.
"""

from __future__ import annotations

from .masks import Split
from .prepare import Prepared
from .state import Written
from .step import ADDITIVE, LINEAR, NONLINEAR, OpFactors

MAX_DEPTH = 8


class Outlook:
    """What summing later would cost, under one split. `settled`: classes whose sums must not leave a block."""

    def __init__(self, prepared: Prepared, split: Split, settled: set[int]) -> None:
        self.prepared, self.split, self.settled = prepared, split, settled
        self.known: dict[tuple[int, int, int, int], bool] = {}  # (block, op, slot, bits) -> whether it passes

    def nbytes(self, written: Written) -> float:
        """Bytes of a storage's value on one rank."""
        value, dims = written
        return value.nbytes / self.split.degree(self.split.held(dims)[0])

    def may_cross(self, b: int, slot: int, written: Written, bits: int) -> bool:
        """Whether the sum had better wait for another block."""
        if self.prepared.factors.classes.of[b][slot] in self.settled:
            return False
        end = len(self.prepared.factors.graph.blocks[b].ops)
        return self.ahead(b, slot, end, written, bits) < self.nbytes(written)

    def ahead(self, b: int, slot: int, i: int, written: Written, bits: int, depth: int = 0, own: float = 0.0) -> float:
        """Bytes to be summed if the sum waits beyond every reader from op `i` on; its own where a reader needs it."""
        prepared = self.prepared
        own = own or self.nbytes(written)
        readers = [(b, j) for j in prepared.readers.get((b, slot), ()) if j >= i]
        if slot in prepared.escapes[b]:
            cls = prepared.factors.classes.of[b][slot]
            others = [(o, j) for o, s in prepared.members[cls] if o != b for j in prepared.readers.get((o, s), ())]
            if cls in self.settled or not (readers or others) or len(others) > MAX_DEPTH:
                return own
            if prepared.factors.graph.blocks[b].storages[slot].kind == "grad":
                return own
            readers += others
        if depth > MAX_DEPTH:
            return own
        total = 0.0
        slots = dict(prepared.members[prepared.factors.classes.of[b][slot]])
        for o, j in readers:
            facts, read = prepared.factors.blocks[o][j], slot if o == b else slots[o]
            passes = self.known.get((o, j, read, bits))
            if passes is None:
                passes = self.known[o, j, read, bits] = self._passes(facts, read, bits)
            if not passes:
                return own
            result = (facts.op.outputs[0], facts.outputs[0])
            now = prepared.nbytes[o][j][len(facts.op.inputs)] / self.split.degree(self.split.held(result[1])[0])
            total += min(now, self.ahead(o, result[0].slot, j + 1, result, bits, depth + 1, now))
        return total

    def _passes(self, facts: OpFactors, slot: int, bits: int) -> bool:
        """Whether the reader lets a sum through in this operand, as far as the other operands are known."""
        op = facts.op
        here = [k for k, value in enumerate(op.inputs) if value.slot == slot]
        if facts.linear == NONLINEAR or not op.outputs or any(k not in facts.through for k in here):
            return False
        if (facts.linear == LINEAR and len(op.inputs) > 1) or (facts.linear != ADDITIVE and len(here) > 1):
            return False
        if facts.linear == ADDITIVE and any(op.inputs[k].shape != op.outputs[0].shape for k in here):
            return False
        return not any(self.split.held(dims)[0] & bits for dims in (*facts.inputs, *facts.outputs))
