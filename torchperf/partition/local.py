"""The program of one rank: local shapes, and collectives as ordinary ops `torchperf.all_reduce`, `.all_gather`, ...

A sum that is scattered onto the sequence, and a value that is gathered, take a storage of their own: memory counts
both. Parameters, gradients and whatever crosses blocks shrink as the split says.
"""

from __future__ import annotations

import math
from dataclasses import replace

from ..graph.graph import Block, Graph, Parameter, Segment
from ..graph.op import Attr, Op
from ..graph.tensor import Storage, Value
from .algebra import Dim, Dims
from .collective import Collective
from .local_values import LocalValues, flat_factors
from .placement import Placement
from .state import WHOLE, BlockPlaced, OpPlaced, State
from .step import OpFactors

SIZES = ("size", "input_sizes", "normalized_shape", "bias_sizes")


def local_program(placement: Placement) -> Graph:
    """What each rank of the axis runs; every rank the same, rows of experts at their mean.

    `bound` stays: the sizes are those of the whole program.
    """
    graph = placement.prepared.factors.graph
    walks = [_LocalBlock(placement, b) for b in range(len(graph.blocks))]
    blocks = [walk.run() for walk in walks]
    fresh = graph.num_storages
    whole: dict[int, int] = {}  # storage of the program -> the storage that holds it gathered
    segments = []
    for segment in graph.segments:
        walk, old = walks[segment.block], len(segment.storages)
        new = list(range(fresh, fresh + len(walk.storages) - old))
        fresh += len(new)
        for slot, at in walk.kept.items():
            new[at - old] = whole[segment.storages[slot]]
        for slot, at in walk.gathers.items():
            whole[segment.storages[slot]] = new[at - old]
        segments.append(Segment(segment.block, segment.module, (*segment.storages, *new)))
    facts = replace(graph.facts, parameters=_parameters(placement))
    return replace(graph, blocks=tuple(blocks), segments=tuple(segments), facts=facts)


def _parameters(placement: Placement) -> tuple[Parameter, ...]:
    """The parameters with the shapes that one rank holds."""
    factors = placement.prepared.factors
    graph = factors.graph
    names = starred(graph)
    found = []
    known: dict[str, tuple[int, ...]] = {}  # every layer's are alike
    for parameter in graph.facts.parameters:
        own = factors.label(names.get(parameter.storage, ""), parameter.shape)
        if own in factors.parameters and own not in known:
            known[own] = tuple(placement.split.local(dim) for dim in factors.parameters[own])
        shape = known.get(own, parameter.shape)
        if shape != parameter.shape:  # not `replace`: a thousand of these are a tenth of the whole partition
            parameter = Parameter(
                parameter.names, shape, parameter.dtype, parameter.trainable, parameter.storage, parameter.gradient
            )
        found.append(parameter)
    return tuple(found)


def starred(graph: Graph) -> dict[int, str]:
    """Storage of each parameter -> its name in a block, with `*` for the layer."""
    slots = [
        [(slot, storage.name or "") for slot, storage in enumerate(block.storages) if storage.kind == "param"]
        for block in graph.blocks
    ]
    return {segment.storages[slot]: name for segment in graph.segments for slot, name in slots[segment.block]}


class _LocalBlock:
    """Rewrites one block."""

    def __init__(self, placement: Placement, b: int) -> None:
        self.placement, self.b = placement, b
        self.block: Block = placement.prepared.factors.graph.blocks[b]
        self.records: list[OpFactors] = placement.prepared.factors.blocks[b]
        self.placed: BlockPlaced = placement.blocks[b]
        self.values = LocalValues(placement.split, placement.rows)
        self.storages: list[Storage] = list(self.block.storages)
        self.root: dict[int, tuple[Value, Dims]] = {}
        self.flat: dict[int, Dim | None] = {}
        self.states: dict[int, State] = {slot: state for slot, (state, _) in self.placed.entry.items()}

        self.plain: set[int] = set()  # slots whose memory is laid out as in the whole program
        self.kept: dict[int, int] = {}  # slot -> the slot that holds the whole of it, gathered in forward
        self.gathers: dict[int, int] = {}  # the same, of what this block gathers for backward

    def run(self) -> Block:
        by_op: dict[int, list[Collective]] = {}
        for c in self.placed.collectives:
            by_op.setdefault(c.op, []).append(c)
        self._roots()
        scattered = {c.slot for c in self.placed.collectives if c.kind == "reduce_scatter"}
        sums = {slot: self._storage(slot, WHOLE) for slot in scattered}
        gathered: dict[int, int] = {}
        for slot in sorted(self.placed.kept):
            gathered[slot] = self.kept[slot] = self._storage(slot, WHOLE)
        ops: list[Op] = []
        waiting = dict(sums)  # until the reduce-scatter, the slot is its sum
        for i in range(len(self.block.ops) + 1):
            reshaped: dict[int, Value] = {}
            for c in by_op.get(i, ()):
                ops.append(self._collective(c, waiting, gathered, reshaped))
            if i < len(self.block.ops):
                ops.append(self._op(i, waiting, gathered, reshaped))
        end = {slot: self.states.get(slot, WHOLE) for slot in range(len(self.block.storages))}
        for slot, storage in enumerate(self.block.storages):
            if slot in self.root:
                self.storages[slot] = replace(storage, nbytes=self._nbytes(slot, end[slot]))
        return Block(self.block.module, self.block.phase, tuple(self.storages), tuple(ops))

    def _roots(self) -> None:
        """The largest value of each slot: its factors in memory order give strides and bytes."""
        largest: dict[int, int] = {}
        for facts, sizes in zip(self.records, self.placement.prepared.nbytes[self.b], strict=True):
            op = facts.op
            for value, dims, nbytes in zip(
                (*op.inputs, *op.outputs), (*facts.inputs, *facts.outputs), sizes, strict=True
            ):
                if nbytes > largest.get(value.slot, -1):
                    largest[value.slot] = nbytes
                    self.root[value.slot] = (value, dims)
        known = self.placement.prepared.leaves
        for slot, (value, dims) in self.root.items():
            self.flat[slot] = flat_factors(value, dims)
            if self.flat[slot] is None or known[id(dims)].isdisjoint(self.placement.split.chosen):
                self.plain.add(slot)

    def _nbytes(self, slot: int, state: State) -> int:
        value, dims = self.root[slot]
        whole = int(self.block.storages[slot].nbytes)  # type: ignore[arg-type]
        return -(-whole * math.prod(self.values.shape(dims, state)) // max(value.numel, 1)) if value.numel else whole

    def _storage(self, slot: int, state: State) -> int:
        """A storage of its own for another form of a slot's value."""
        self.storages.append(Storage(self._nbytes(slot, state), "activation"))
        return len(self.storages) - 1

    def _collective(
        self, c: Collective, waiting: dict[int, int], gathered: dict[int, int], reshaped: dict[int, Value]
    ) -> Op:
        attrs: tuple[tuple[str, Attr], ...] = (("axis", c.axis), ("ranks", c.ranks), ("role", c.role))
        if c.role == "statistic":
            self.storages.append(Storage(c.nbytes, "activation"))
            value = Value(len(self.storages) - 1, c.dtype, c.shape, (1,))
            return self._emit(c, value, value, attrs)
        if c.kind == "all_reduce":
            value = Value(waiting.get(c.slot, c.slot), c.dtype, c.shape, _dense(c.shape))
            self._settle(c.slot, c.mask)
            return self._emit(c, value, value, attrs)
        whole = Value(c.slot, c.dtype, c.shape, _dense(c.shape))
        if c.kind == "reduce_scatter":
            self.states[c.slot] = State(0, True, self.states.get(c.slot, WHOLE).ragged)
            part = Value(c.slot, c.dtype, c.part, _dense(c.part))
            return self._emit(c, replace(whole, slot=waiting.pop(c.slot)), part, attrs)
        self.storages.append(Storage(c.nbytes, "activation"))
        target = replace(whole, slot=len(self.storages) - 1)
        if c.role == "reshape":
            reshaped[c.slot] = target
        else:
            gathered[c.slot] = target.slot
            if not self.placement.split.regather and self.block.phase == "forward":
                self.gathers[c.slot] = target.slot
        return self._emit(c, Value(c.slot, c.dtype, c.part, _dense(c.part)), target, attrs)

    def _settle(self, slot: int, mask: int) -> None:
        state = self.states.get(slot, WHOLE)
        self.states[slot] = State(state.partial & ~mask, state.sequence, state.ragged)

    def _emit(self, c: Collective, value: Value, result: Value, attrs: tuple[tuple[str, Attr], ...]) -> Op:
        module = self.block.ops[min(c.op, len(self.block.ops) - 1)].module
        return Op(f"torchperf.{c.kind}", c.phase, module, ("self",), (value,), (result,), attrs)

    def _op(self, i: int, waiting: dict[int, int], gathered: dict[int, int], reshaped: dict[int, Value]) -> Op:
        op, facts, placed = self.block.ops[i], self.records[i], self.placed.ops[i]
        met = self.placement.prepared.met[self.b][i]
        if placed is None and met <= self.plain and met.isdisjoint(waiting):
            for value in op.outputs if not self.placement.prepared.views[self.b][i] else ():
                self.states[value.slot] = WHOLE
                gathered.pop(value.slot, None)
            return op
        if placed is None:
            placed = OpPlaced((WHOLE,) * len(op.inputs), (WHOLE,) * len(op.outputs))
        view = self.placement.prepared.views[self.b][i]
        along = any(s.sequence for s in placed.inputs) and not any(s.partial for s in placed.inputs)
        inputs = []
        for value, dims, state in zip(op.inputs, facts.inputs, placed.inputs, strict=True):
            held = self.states.get(value.slot, WHOLE)
            local = self.values.value(
                value, dims, state, self.flat.get(value.slot), placed.whole if value.slot in reshaped else 0
            )
            if value.slot in reshaped:
                local = replace(local, slot=reshaped[value.slot].slot)
            elif held.sequence and not state.sequence and not view and value.slot in gathered:
                local = replace(local, slot=gathered[value.slot])
            elif value.slot in waiting:
                local = replace(local, slot=waiting[value.slot])
            elif along and not state and not view and self.placement.split.times_sequence(dims) == 1:
                local = replace(
                    local, shape=self.values.shape(dims, State(0, True))
                )  # its slice of what it holds whole
            inputs.append(local)
        outputs = []
        for value, dims, state in zip(op.outputs, facts.outputs, placed.outputs, strict=True):
            local = self.values.value(value, dims, state, self.flat.get(value.slot))
            if value.slot in waiting:
                local = replace(local, slot=waiting[value.slot])
            outputs.append(local)
            if not view:
                self.states[value.slot] = state
                gathered.pop(value.slot, None)
        attrs = tuple((name, _attr(op, name, attr, outputs)) for name, attr in op.attrs)
        return replace(op, inputs=tuple(inputs), outputs=tuple(outputs), attrs=attrs)


def _attr(op: Op, name: str, attr: Attr, outputs: list[Value]) -> Attr:
    """An argument that repeats a shape follows the local one."""
    if not outputs or outputs[0].shape == op.outputs[0].shape:
        return attr
    shape = outputs[0].shape
    if name in SIZES and isinstance(attr, tuple):
        return (
            shape[len(shape) - len(attr) :] if name == "normalized_shape" else shape if name != "bias_sizes" else attr
        )
    if name == "split_sizes":
        d = int(op.attr("dim", 0)) % len(shape)
        return tuple(value.shape[d] for value in outputs)
    if name == "split_size":
        return shape[int(op.attr("dim", 0)) % len(shape)]
    if name == "num_weights" or (name == "end" and op.name.startswith("aten.arange.")):
        return shape[0]
    return attr


def _dense(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))
