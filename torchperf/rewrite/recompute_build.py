"""The program with what runs again put in: twins of forward blocks, before the backward ops that use what they make."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise

from ..graph.graph import Block, Graph, Segment
from ..graph.op import Op
from ..graph.tensor import Value
from .recompute_region import Place, Region


@dataclass(frozen=True, slots=True)
class Again:
    """What one region runs again.

    ops   of its forward segments, in order
    make  storages that these write: they take new ones
    hand  those of `make` that backward uses in the place of what forward made
    at    the place in the backward segments before which they run
    hold  ops whose results are kept until then, used or not
    """

    ops: tuple[Place, ...]
    make: frozenset[int]
    hand: frozenset[int]
    at: Place = (0, 0)
    hold: frozenset[Place] = frozenset()


@dataclass(slots=True)
class Builder:
    """Collects what runs again, then writes the program. Layers alike share one twin."""

    graph: Graph
    blocks: list[Block] = field(default_factory=list)
    fresh: int = 0
    before: dict[int, dict[int, list[Segment]]] = field(default_factory=dict)  # segment -> op -> what runs before it
    names: dict[int, dict[int, int]] = field(default_factory=dict)  # backward segment -> storage -> its new id
    twins: dict[int, tuple[int, ...]] = field(default_factory=dict)  # backward segment -> blocks that run before it
    known: dict[tuple[object, ...], tuple[int, tuple[int, ...]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.blocks = list(self.graph.blocks)
        self.fresh = self.graph.num_storages

    def add(self, region: Region, again: Again) -> None:
        """Put in what one region runs again."""
        names = {}
        for storage in sorted(again.make):
            names[storage] = self.fresh
            self.fresh += 1
        segment, op = region.backward[again.at[0]], again.at[1]
        here = self.before.setdefault(segment, {}).setdefault(op, [])
        places = sorted({*again.ops, *again.hold})
        for k, s in enumerate(region.forward):
            ops = tuple(i for where, i in places if where == k)
            if ops:
                held = frozenset(i for where, i in again.hold if where == k)
                here.append(self._part(self.graph.segments[s], "recompute", ops, names, held))
        for s in region.backward:
            self.names.setdefault(s, {}).update({i: names[i] for i in again.hand})
            self.twins[s] = (*self.twins.get(s, ()), *(twin.block for twin in here))

    def program(self) -> Graph:
        """The graph with everything that was added."""
        segments: list[Segment] = []
        for s, segment in enumerate(self.graph.segments):
            if s not in self.names:
                segments.append(segment)
                continue
            cuts = sorted({0, *self.before.get(s, {}), len(self.graph.blocks[segment.block].ops)})
            for start, end in pairwise(cuts):
                segments += self.before.get(s, {}).get(start, ())
                ops, apart = tuple(range(start, end)), self.twins[s]
                segments.append(self._part(segment, "backward", ops, self.names[s], apart=apart))
        used = {segment.block for segment in segments}
        place = {b: new for new, b in enumerate(b for b in range(len(self.blocks)) if b in used)}
        return replace(
            self.graph,
            blocks=tuple(self.blocks[b] for b in place),
            segments=tuple(replace(segment, block=place[segment.block]) for segment in segments),
        )

    def _part(
        self, segment: Segment, phase: str, ops: tuple[int, ...], names: dict[int, int],
        held: frozenset[int] = frozenset(), apart: tuple[int, ...] = (),
    ) -> Segment:  # fmt: skip
        """A segment that runs some ops of another's block, its storages renamed; the same block where all is alike.

        A backward shares its block only with those whose twins are the same: what is paired may be fused as a pair.
        """
        key = (segment.block, phase, ops, held, apart)
        if key not in self.known:
            source = self.graph.blocks[segment.block]
            chosen = [op for i in ops for op in (_held(source.ops[i]) if i in held else [source.ops[i]])]
            block, slots = _part(source, phase, chosen)
            self.known[key] = (len(self.blocks), slots)
            self.blocks.append(block)
        index, slots = self.known[key]
        return Segment(index, segment.module, tuple(names.get(i, i) for i in (segment.storages[s] for s in slots)))


def _held(op: Op) -> list[Op]:
    """Ops that do nothing but to hold what another made."""
    return [Op("torchperf.alias", op.phase, op.module, ("self",), (v,), (v,)) for v in op.outputs]


def _part(source: Block, phase: str, ops: list[Op]) -> tuple[Block, tuple[int, ...]]:
    """A block of some ops of another, and which of its slots each of the new one's was."""
    slots = tuple(sorted({value.slot for op in ops for value in (*op.inputs, *op.outputs)}))
    place = {slot: new for new, slot in enumerate(slots)}

    def moved(values: tuple[Value, ...]) -> tuple[Value, ...]:
        return tuple(replace(v, slot=place[v.slot]) for v in values)

    new = tuple(replace(op, phase=phase, inputs=moved(op.inputs), outputs=moved(op.outputs)) for op in ops)
    return Block(source.module, phase, tuple(source.storages[slot] for slot in slots), new), slots
