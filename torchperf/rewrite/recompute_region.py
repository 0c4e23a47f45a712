"""Which ops a layer must run again so that its backward finds what it reads.

A region is one call of a repeated layer: its forward segments and its backward segments. Some of what forward makes is
kept; the rest is forgotten, and the ops that make it run again, in phase `recompute`, into storages of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, groupby

from ..graph.graph import Block, Graph
from ..graph.op import Op

Place = tuple[int, int]  # (segment of the region, op in its block)


@dataclass(frozen=True, slots=True)
class Region:
    """One call of a layer.

    module    the layer's path, "" for what lies outside every layer
    forward   its forward segments, as indices into the program's
    backward  its backward segments, likewise
    own       storages of activations that it makes in forward
    shared    those of them that other regions, or the caller, use too
    """

    module: str
    forward: tuple[int, ...]
    backward: tuple[int, ...]
    own: frozenset[int]
    shared: frozenset[int]


def regions(graph: Graph) -> list[Region]:
    """Every region that has a backward, in the order of forward."""
    calls = list(_calls(graph))
    of = {s: k for k, (_, forward, backward) in enumerate(calls) for s in (*forward, *backward)}
    maker: dict[int, int] = {}  # storage -> the segment that first used it
    users: dict[int, set[int]] = {}
    for s, segment in enumerate(graph.segments):
        for slot in _used(graph.blocks[segment.block]):
            maker.setdefault(segment.storages[slot], s)
            users.setdefault(segment.storages[slot], set()).add(of.get(s, -1))
    held = set(graph.facts.outputs)
    found = []
    for k, (module, forward, backward) in enumerate(calls):
        own: set[int] = set()
        for s in forward:
            block, storages = graph.blocks[graph.segments[s].block], graph.segments[s].storages
            made = (storages[slot] for slot in _written(block) if block.storages[slot].kind == "activation")
            own.update(storage for storage in made if maker[storage] in forward)
        shared = frozenset(i for i in own if users[i] != {k} or i in held)
        if backward:
            found.append(Region(module, forward, backward, frozenset(own), shared))
    return found


def _calls(graph: Graph) -> Iterator[tuple[str, tuple[int, ...], tuple[int, ...]]]:
    """(module, forward segments, backward segments) of each call of a layer, or of all where the sides do not pair."""
    runs: dict[str, dict[str, list[tuple[int, ...]]]] = {}
    owner = [(segment.module, graph.blocks[segment.block].phase) for segment in graph.segments]
    for (module, phase), run in groupby(range(len(owner)), owner.__getitem__):
        runs.setdefault(module, {}).setdefault(phase, []).append(tuple(run))
    for module, phases in runs.items():
        forward, backward = phases.get("forward", []), phases.get("backward", [])
        if module and len(forward) == len(backward):
            for there, back in zip(forward, reversed(backward), strict=True):
                yield module, there, back
        elif forward:
            yield module, tuple(chain(*forward)), tuple(chain(*backward))


def is_view(op: Op) -> bool:
    """Whether the op only looks at a storage that it reads in another way."""
    if not op.outputs or not op.name.startswith(("aten.", "torchperf.alias")):
        return False  # a collective may work in place
    packet = op.name.split(".")[1]
    slots = {value.slot for value in op.inputs}
    return not packet.endswith("_") and "dropout" not in packet and all(value.slot in slots for value in op.outputs)


def _used(block: Block) -> set[int]:
    return {value.slot for op in block.ops for value in (*op.inputs, *op.outputs)}


def _written(block: Block) -> set[int]:
    return {value.slot for op in block.ops if not is_view(op) for value in op.outputs}


class Walk:
    """The ops of one region, with storages of the program in place of slots; of forward without the views."""

    def __init__(self, graph: Graph, region: Region) -> None:
        self.region = region
        self.forward = [step for step in _ops(graph, region.forward) if not is_view(step.op)]
        self.backward = list(_ops(graph, region.backward))

    def wanted(self) -> frozenset[int]:
        """What backward uses of what forward makes."""
        found = {i for step in self.backward for i in step.read | step.written}
        return frozenset(found & self.region.own)

    def first_use(self, storages: frozenset[int]) -> Place:
        """Where backward first uses one of these."""
        return next(step.place for step in self.backward if storages & (step.read | step.written))

    def settled(self, storage: int) -> bool:
        """Whether nothing reads the storage before its last write: what it holds at the end serves every reader."""
        read = False
        for step in self.forward:
            if storage in step.written and read:
                return False
            read = read or (storage in step.read and storage not in step.written)
        return True

    def again(self, wanted: frozenset[int], forgotten: frozenset[int]) -> list[Place]:
        """The fewest ops, in order, that make `wanted` from what is not `forgotten`."""
        sought = set(wanted & forgotten)
        chosen: list[Place] = []
        for step in reversed(self.forward):
            if step.written & sought:
                chosen.append(step.place)
                sought |= step.read & forgotten
        return chosen[::-1]


@dataclass(frozen=True, slots=True)
class Step:
    """One op of a region, and the storages that it reads and writes."""

    place: Place
    op: Op
    read: frozenset[int]
    written: frozenset[int]


def _ops(graph: Graph, segments: Sequence[int]) -> Iterator[Step]:
    for k, s in enumerate(segments):
        segment = graph.segments[s]
        for i, op in enumerate(graph.blocks[segment.block].ops):
            read = frozenset(segment.storages[v.slot] for v in op.inputs)
            yield Step((k, i), op, read, frozenset(segment.storages[v.slot] for v in op.outputs))
