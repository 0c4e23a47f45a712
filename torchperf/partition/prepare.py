"""What placement asks of a program again and again, worked out once: leaves, work and readers."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from ..graph.op import Op
from .algebra import Dim, Dims, flatten, leaves
from .factors import Factors
from .rules import base_name
from .state import Step
from .step import OpFactors


@dataclass(slots=True)
class Prepared:
    """A factored program, ready for many placements.

    counts     how often each block runs
    touched    of each op, the ids of all leaves that it meets
    flops      of each op that contracts; nominal, the same formula whole and split
    readers    (block, slot) -> ops of that block that read the storage otherwise than by a view
    escapes    slots of each block that another block or the caller sees
    members    class of storages -> its (block, slot) pairs
    views      of each op, whether it only looks at what it reads in another way
    nbytes     of each op's inputs and outputs, in that order
    moved      of each op, the bytes that it reads and writes
    leaves     id of dims, or of a dim -> ids of its leaves
    together   id of a leaf -> leaves that stand beside it in a value (in two segments of one sum they do not)
    met        of each op, the slots that it reads or writes
    slots      of each segment, storage of the program -> slot of the block
    """

    factors: Factors
    counts: tuple[int, ...] = ()
    touched: list[list[frozenset[int]]] = field(default_factory=list)
    flops: list[list[float]] = field(default_factory=list)
    readers: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    escapes: list[frozenset[int]] = field(default_factory=list)
    members: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    views: list[list[bool]] = field(default_factory=list)
    nbytes: list[list[list[int]]] = field(default_factory=list)
    moved: list[list[int]] = field(default_factory=list)
    leaves: dict[int, frozenset[int]] = field(default_factory=dict)
    together: dict[int, set[int]] = field(default_factory=dict)
    met: list[list[frozenset[int]]] = field(default_factory=list)
    slots: list[dict[int, int]] = field(default_factory=list)
    steps: dict[object, Step] = field(default_factory=dict, repr=False)  # what an op did under a split, see place_block


def prepare(factors: Factors) -> Prepared:
    """Everything about a program that does not depend on the plan."""
    graph = factors.graph
    out = Prepared(factors, graph.counts)
    memo = out.leaves
    out.slots = [dict(zip(segment.storages, range(len(segment.storages)), strict=True)) for segment in graph.segments]
    seen: set[int] = set()

    def of_dims(dims: Dims) -> frozenset[int]:
        found = memo.get(id(dims))
        if found is None:
            found = memo[id(dims)] = frozenset(id(leaf) for dim in dims for leaf in leaves(dim))
        return found

    def of_dim(dim: Dim) -> frozenset[int]:
        found = memo.get(id(dim))
        if found is None:
            found = memo[id(dim)] = frozenset(id(leaf) for leaf in leaves(dim))
        return found

    for b, (block, records) in enumerate(zip(graph.blocks, factors.blocks, strict=True)):
        out.touched.append([_touched(facts, of_dims, of_dim) for facts in records])
        out.flops.append([_flops(facts) for facts in records])
        views = [is_view(op) for op in block.ops]
        out.views.append(views)
        out.met.append([frozenset(x.slot for x in (*op.inputs, *op.outputs)) for op in block.ops])
        weights = {id(value): value.nbytes for value in block.values()}
        out.nbytes.append([[weights[id(x)] for x in (*op.inputs, *op.outputs)] for op in block.ops])
        out.moved.append([0 if v else sum(n) for n, v in zip(out.nbytes[b], views, strict=True)])
        for i, (op, facts) in enumerate(zip(block.ops, records, strict=True)):
            for dims in (*facts.inputs, *facts.outputs) if facts.kind != "create" else ():
                if id(dims) not in seen:
                    seen.add(id(dims))
                    _beside([factor for dim in dims for factor in dim], out.together)
            if facts.kind == "create" or views[i]:
                continue
            for slot in {value.slot for value in op.inputs}:
                out.readers.setdefault((b, slot), []).append(i)
        for slot, cls in enumerate(factors.classes.of[b]):
            out.members.setdefault(cls, []).append((b, slot))
    held = set(graph.facts.outputs)
    seen_by_caller = {
        (segment.block, slot) for segment in graph.segments for slot, s in enumerate(segment.storages) if s in held
    }
    for b, block in enumerate(graph.blocks):
        of = factors.classes.of[b]
        out.escapes.append(
            frozenset(
                slot
                for slot in range(len(block.storages))
                if len(out.members[of[slot]]) > 1 or (b, slot) in seen_by_caller or block.storages[slot].kind == "grad"
            )
        )
    return out


def _beside(factors: Dim, together: dict[int, set[int]]) -> set[int]:
    """Enter every pair of leaves that stand side by side; returns the leaves."""
    every: set[int] = set()
    for factor in flatten(factors):
        if factor.kind == "sum":
            own = set().union(*(_beside(segment, together) for segment in factor.parts))
        else:
            own = {id(factor)}
        for leaf in own:
            together.setdefault(leaf, set()).update(every)
        for leaf in every:
            together[leaf] |= own
        every |= own
    return every


def is_view(op: Op) -> bool:
    """Whether the op only looks at what it reads in another way."""
    return (
        bool(op.outputs)
        and bool(op.inputs)
        and not op.name.split(".")[1].endswith("_")
        and all(value.slot == op.inputs[0].slot for value in op.outputs)
    )


def _touched(facts: OpFactors, of_dims: object, of_dim: object) -> frozenset[int]:
    found: set[int] = set()
    for dims in (*facts.inputs, *facts.outputs):
        found |= of_dims(dims)  # type: ignore[operator]
    for contracted in facts.contracted:
        for dim in contracted:
            found |= of_dim(dim)  # type: ignore[operator]
    if facts.ragged is not None:
        found |= of_dim(facts.ragged)  # type: ignore[operator]
    return frozenset(found)


def _flops(facts: OpFactors) -> float:
    """Multiply-adds, twice, of a contraction; 0 for the rest."""
    if facts.kind != "matmul":
        return 0.0
    op, name = facts.op, base_name(facts.op.name)
    if "attention" in name:
        at = 1 if "backward" in name else 0
        keys = op.inputs[at + 1].shape[2]
        return 4.0 * op.inputs[at].numel * keys * (2.5 if at else 1.0)  # type: ignore[operator]
    if name == "convolution":
        return 2.0 * op.outputs[0].numel * math.prod(op.inputs[1].shape[1:])  # type: ignore[arg-type, no-any-return]
    if name == "convolution_backward":
        window = math.prod(op.inputs[2].shape[1:])  # type: ignore[arg-type]
        return float(2 * op.inputs[0].numel * window * min(len(op.outputs), 2))
    if name == "_grouped_mm":
        return 2.0 * op.inputs[0].numel * op.inputs[1].shape[-1]  # type: ignore[operator]
    return 2.0 * op.outputs[0].numel * op.inputs[-2].shape[-1]  # type: ignore[operator]
