"""One block under one split: each op meets the states of what it reads, and says what must happen before it.

A sum still to be done (Partial) belongs to a storage, passes what is linear, and is done once, where that is cheapest.
Under sequence parallelism it is done by a reduce-scatter onto the sequence, and an op of a split region gathers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..graph.tensor import Value
from .algebra import Dims, leaves
from .ledger import Ledger
from .masks import Split
from .partial import Outlook
from .prepare import Prepared
from .sequence import joins_more, left, needs_whole
from .state import WHOLE, BlockPlaced, Crossing, OpPlaced, State, Step, Written
from .step import ADDITIVE, LINEAR, NONLINEAR, PRODUCT, OpFactors


class BlockWalk(Ledger):
    """Walks the ops of block `b` from the states at its entry."""

    def __init__(
        self,
        prepared: Prepared,
        split: Split,
        outlook: Outlook,
        b: int,
        entry: dict[int, Crossing],
        rows: set[int],
        gathers: set[int],
        early: frozenset[int] = frozenset(),
    ) -> None:
        super().__init__(prepared, split, b, entry)
        self.outlook, self.rows, self.kept = outlook, rows, gathers
        self.states = {slot: state for slot, (state, _) in entry.items()}
        self.written: dict[int, Written] = {
            slot: (replace(value, slot=slot), dims) for slot, (_, (value, dims)) in entry.items()
        }
        self.early = early  # ops that gather what they read, because what they write would be gathered, and is larger
        self.earlier: set[int] = set()  # more of these, found on this walk
        self.maker: dict[int, int] = {}
        self.gathered: set[int] = set()
        self.made: set[int] = set()

    def run(self, chosen: frozenset[int]) -> BlockPlaced:
        """Everything that the split asks of this block; `chosen` are the ids of its leaves."""
        touched, met = self.prepared.touched[self.b], self.prepared.met[self.b]
        split = (self.split.axis, self.split.sizes, self.split.masks, self.b)
        for i, facts in enumerate(self.prepared.factors.blocks[self.b]):
            if not met[i].isdisjoint(self.states):
                self.out.ops.append(self._op(i, facts))
            elif touched[i].isdisjoint(chosen) and not self._routed(i):
                self.out.ops.append(None)
            elif self.split.sequence:
                self.out.ops.append(self._op(i, facts))
            else:
                self.out.ops.append(self._again(i, facts, (split, i, touched[i] & chosen)))
        end = len(self.block.ops)
        escapes = self.prepared.escapes[self.b]
        for slot, state in list(self.states.items()):
            if not self.split.norm_gradients and self.block.storages[slot].kind == "grad":
                continue  # the runtime sums it with the gradients of data parallelism, or not at all
            if (
                state.partial
                and slot in escapes
                and not self.outlook.may_cross(self.b, slot, self.written[slot], state.partial)
            ):
                self._resolve(slot, end, "end of the block")
        for slot in escapes & {*self.states, *self.out.entry}:
            found = self.states.get(slot, WHOLE)
            self.out.exit[slot] = (found, self.written[slot]) if found else None
        return self.out

    def _again(self, i: int, facts: OpFactors, key: object) -> OpPlaced:
        """An op that meets no state: what it did before under the same leaves, or worked out now."""
        out = self.out
        known = self.prepared.steps.get(key)
        if known is not None:
            out.collectives += known.collectives
            out.conflicts += known.conflicts
            out.flops += known.flops
            out.moved += known.moved
            self.rows |= known.rows
            self._write(i, facts, known.placed.outputs)
            return known.placed
        collectives, conflicts, flops, moved = len(out.collectives), len(out.conflicts), out.flops, out.moved
        rows = frozenset(self.rows)
        out.flops = out.moved = 0.0
        placed = self._op(i, facts)
        self.prepared.steps[key] = Step(
            placed, tuple(out.collectives[collectives:]), tuple(out.conflicts[conflicts:]), out.flops, out.moved,
            frozenset(self.rows - rows),
        )  # fmt: skip
        out.flops, out.moved = out.flops + flops, out.moved + moved
        return placed

    def _op(self, i: int, facts: OpFactors) -> OpPlaced:
        op, split = facts.op, self.split
        routed = self._routed(i)
        if facts.kind == "create":
            return self._create(i, facts, routed)
        held = [split.held(dims) for dims in facts.inputs]
        results = [split.held(dims) for dims in facts.outputs]
        contracted = [split.mask_of(dims) for dims in facts.contracted]
        counts_once = facts.kind == "matmul" or facts.linear == LINEAR or not any(contracted)
        if not counts_once and any(split.mixed(dim) for dims in facts.contracted for dim in dims):
            self._conflict(facts, "a segment that every rank holds would be summed on each")
        if any(twice for _, twice in (*held, *results)):
            self._conflict(facts, "a value is split twice over one axis")
        kept = split.mask_of([facts.ragged]) if facts.ragged is not None else 0
        for mask in (*(m for m, _ in results), *contracted):
            kept |= mask
        everything = 0
        for mask, _ in held:
            everything |= mask
        whole = split.mask_of(facts.opaque) if facts.opaque else 0
        whole |= everything & ~kept if facts.known else everything
        if whole:
            for k, (value, (mask, _)) in enumerate(zip(op.inputs, held, strict=True)):
                if mask & whole:
                    if self.block.storages[value.slot].kind == "param":
                        self._conflict(facts, "a parameter would be needed whole")
                    self._collective(
                        "all_gather", mask & whole, i, value, facts.inputs[k], "reshape", op.name, mask & whole
                    )
            held = [(mask & ~whole, twice) for mask, twice in held]
            contracted = [mask & ~whole for mask in contracted]
        ragged = 0
        for value in op.inputs:
            ragged |= self.states.get(value.slot, WHOLE).ragged
        on_axis = bool(everything & ~whole) or any(contracted) or any(m & ~whole for m, _ in results) or bool(ragged)
        gathers = bool(split.sequence) and (i in self.early or needs_whole(facts, split, on_axis, routed))
        passing = self._pass(i, facts, gathers)
        sequence = self._sequence(i, facts, gathers) and not passing
        inputs = [self._input_state(value, sequence or bool(passing), i) for value in op.inputs]
        self._statistics(i, facts, whole, sequence)
        outputs = []
        for j, dims in enumerate(facts.outputs):
            partial, lies, rows = contracted[j] | passing, False, 0
            if sequence and not self.prepared.views[self.b][i]:
                own, lies = left(facts, j, split, routed)
                partial |= own if self._class(op.outputs[j].slot) not in split.complete else 0
            if facts.ragged is not None:
                rows = self._grouped(facts, dims)
            elif ragged:
                if any(id(leaf) in self.rows for dim in facts.contracted[j] for leaf in leaves(dim)):
                    partial |= ragged
                elif any(id(leaf) in self.rows for dim in dims for leaf in leaves(dim)):
                    rows = ragged
                elif op.outputs[j].numel > 1:
                    self._conflict(facts, "rows of one rank's experts lose their place")
            if partial & results[j][0]:
                self._conflict(facts, "what is summed over the axis is split over it too")
            outputs.append(State(partial, lies, rows))
        return self._finish(i, facts, whole, inputs, outputs)

    def _create(self, i: int, facts: OpFactors, routed: bool) -> OpPlaced:
        """A new tensor is whole; on the way through local experts, as long as what it is made like."""
        read = [self.states.get(v.slot, WHOLE) if routed else WHOLE for v in facts.op.inputs]
        along = routed and (not read or any(state.sequence for state in read))
        made = [State(0, True) if along and self.split.times_sequence(d) == 1 else WHOLE for d in facts.outputs]
        return self._finish(i, facts, 0, [State(0, True) if s.sequence else WHOLE for s in read], made)

    def _grouped(self, facts: OpFactors, dims: Dims) -> int:
        assert facts.ragged is not None
        mask = self.split.mask_of([facts.ragged])
        if mask and len(dims) == 2:
            self.rows.update(id(leaf) for leaf in leaves(facts.inputs[0][0]))
        return mask if len(dims) == 2 else 0

    def _finish(self, i: int, facts: OpFactors, whole: int, inputs: list[State], outputs: list[State]) -> OpPlaced:
        """Write down what the op leaves behind."""
        if self.prepared.views[self.b][i]:
            outputs = [self.states.get(value.slot, WHOLE) for value in facts.op.outputs]
        else:
            self._write(i, facts, outputs)
        self._count(i, facts, whole, inputs, outputs)
        return OpPlaced(tuple(inputs), tuple(outputs), whole)

    def _write(self, i: int, facts: OpFactors, outputs: Sequence[State]) -> None:
        """The states of what an op wrote; a view writes nothing."""
        if self.prepared.views[self.b][i]:
            return
        for j, value in enumerate(facts.op.outputs):
            self.gathered.discard(value.slot)
            self.made.add(value.slot)
            self.maker[value.slot] = i
            self.states.pop(value.slot, None)
            if outputs[j]:
                self.states[value.slot] = outputs[j]
                self.written[value.slot] = (value, facts.outputs[j])

    def _pass(self, i: int, facts: OpFactors, gathers: bool) -> int:
        """The bits of a Partial that goes through this op; what may not is summed first."""
        op = facts.op
        if self.prepared.views[self.b][i]:
            return 0
        found = {k: self.states[v.slot].partial for k, v in enumerate(op.inputs) if v.slot in self.states}
        found = {k: mask for k, mask in found.items() if mask}
        if not found:
            return 0
        if self._may_pass(i, facts, found):
            bits = 0
            for mask in found.values():
                bits |= mask
            return bits
        for slot in dict.fromkeys(op.inputs[k].slot for k in found):
            self._resolve(slot, i, op.name, scatter=not gathers)
        return 0

    def _may_pass(self, i: int, facts: OpFactors, found: dict[int, int]) -> bool:
        op, bits = facts.op, 0
        for mask in found.values():
            bits |= mask
        if facts.linear == NONLINEAR or any(k not in facts.through for k in found):
            return False
        if any(self.split.held(dims)[0] & bits for dims in facts.outputs):  # a fused QKV: Q is split where K is summed
            return False
        waiting = {slot for slot, state in self.states.items() if state.partial}
        for k, (value, dims) in enumerate(zip(op.inputs, facts.inputs, strict=True)):
            state = self.states.get(value.slot, WHOLE)
            if self.split.held(dims)[0] & bits or (k not in found and state.ragged & bits):
                return False
            joins = facts.linear == ADDITIVE and joins_more(self.prepared, self.split, self.b, i, facts, waiting)
            if k not in found and state.sequence and not joins:
                return False
        if facts.linear == LINEAR and (len(found) < len(op.inputs) or len(set(found.values())) > 1):
            return False
        if facts.linear == ADDITIVE and any(op.inputs[k].shape != op.outputs[0].shape for k in found):
            return False
        if facts.linear == PRODUCT and len(found) > 1:
            return False
        for k, mask in found.items():
            slot = op.inputs[k].slot
            ahead = self.outlook.ahead(self.b, slot, i, self.written[slot], mask)
            now = self.outlook.nbytes(self.written[slot])
            if ahead > now or (ahead == now and facts.linear == PRODUCT):
                return False
        return True

    def _resolve(self, slot: int, i: int, cause: str, scatter: bool = True) -> None:
        """Do the sum that a storage waits for."""
        state = self.states.pop(slot)
        value, dims = self.written[slot]
        split = self.split
        role = "gradient" if self.block.storages[slot].kind == "grad" else "activation"
        scatter = scatter and role == "activation" and state.partial == split.full and not split.held(dims)[0]
        if scatter and split.times_sequence(dims) == 1:
            self._collective("reduce_scatter", state.partial, i, value, dims, role, cause)
            self.states[slot] = State(0, True, state.ragged)
            return
        self._collective("all_reduce", state.partial, i, value, dims, role, cause)
        if state.ragged or state.sequence:
            self.states[slot] = State(0, state.sequence, state.ragged)

    def _sequence(self, i: int, facts: OpFactors, whole: bool) -> bool:
        """Whether the op runs split along the sequence; if not, what it reads so is gathered."""
        if not self.split.sequence or whole or self.prepared.views[self.b][i]:
            return False
        return any(v.slot in self.states and self.states[v.slot].sequence for v in facts.op.inputs)

    def _input_state(self, value: Value, sequence: bool, i: int) -> State:
        state = self.states.get(value.slot, WHOLE)
        if state.sequence and not sequence and not self.prepared.views[self.b][i]:
            if value.slot not in self.gathered:
                self.gathered.add(value.slot)
                self._look_back(value.slot)
                again = self.block.phase == "backward" and value.slot not in self.made and self._saved(value.slot)
                if again and not self.split.regather and self._class(value.slot) in self.kept:
                    self.out.kept.add(value.slot)
                    return State(state.partial, False, state.ragged)
                role = "regather" if again else "activation"
                found, dims = self.written[value.slot]
                self._collective("all_gather", self.split.full, i, found, dims, role, self.block.ops[i].name)
            return State(state.partial, False, state.ragged)
        return state

    def _look_back(self, slot: int) -> None:
        """A gather is cheaper before the op that made the value, where that op read less than it wrote."""
        maker = self.maker.get(slot)
        if maker is None:
            return
        op, placed = self.block.ops[maker], self.out.ops[maker]
        if placed is not None:
            read = {v.slot: v.nbytes for v, state in zip(op.inputs, placed.inputs, strict=True) if state.sequence}
            if read and sum(read.values()) < self.written[slot][0].nbytes:
                self.earlier.add(maker)
