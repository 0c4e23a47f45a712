"""What backward reads of a fused forward kernel it can often make again from what is saved anyway.

As torch.compile's partitioner does: an output of a chain that only fused kernels of backward read is dropped where
the chain's own inputs are saved already, or are smaller together; backward's kernels then start with the same chain.
What a contraction reads in backward stays saved: it would have to be written out again. Random numbers are not made
twice.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ..graph.graph import Block, Graph, Segment
from ..graph.op import Op
from ..graph.tensor import Storage, Value
from .chains import FUSED, fused, without_dead_outputs


def remake(graph: Graph) -> Graph:
    """The program with forward's outputs dropped where backward makes them again."""
    for forward, backward in _pairs(graph):
        graph = _remade(graph, forward, backward)
    return graph


def _remade(graph: Graph, forward: int, backward: int) -> Graph:
    """The same for one pair of blocks."""
    there = {s.module: s for s in graph.segments if s.block == forward}
    same = next(_same(there[s.module], s) for s in graph.segments if s.block == backward)
    blocks = list(graph.blocks)
    plan = _Plan(blocks[forward], blocks[backward], same, _readers(graph, forward, backward))
    blocks[forward], blocks[backward], extra = plan.run()
    fresh = graph.num_storages
    segments = []
    for segment in graph.segments:
        added = []
        for how, slot in extra if segment.block == backward else ():
            if how == "from":
                added.append(there[segment.module].storages[slot])
            else:
                added.append(fresh)
                fresh += 1
        segments.append(Segment(segment.block, segment.module, (*segment.storages, *added)))
    return replace(graph, blocks=tuple(blocks), segments=tuple(segments))


def _same(forward: Segment, backward: Segment) -> dict[int, int]:
    """Forward slot -> backward slot of what both use."""
    place = {storage: slot for slot, storage in enumerate(backward.storages)}
    return {slot: place[storage] for slot, storage in enumerate(forward.storages) if storage in place}


def _pairs(graph: Graph) -> list[tuple[int, int]]:
    """(block of forward or recompute, block of backward) of the same layers, alike in all, once a layer each.

    A backward in which something is made again has several segments: each is a pair with what stands before it.
    """
    runs: dict[str, dict[str, list[Segment]]] = {}
    for segment in graph.segments:
        if segment.module:
            runs.setdefault(segment.module, {}).setdefault(graph.blocks[segment.block].phase, []).append(segment)
    found: dict[tuple[int, int], list[dict[int, int]]] = {}
    for phases in runs.values():
        for first in (phases.get("forward", []), phases.get("recompute", [])):
            for back in phases.get("backward", []) if len(first) == 1 else ():
                found.setdefault((first[0].block, back.block), []).append(_same(first[0], back))
    counts = graph.counts
    return [(f, b) for (f, b), same in found.items() if counts[b] == len(same) and all(x == same[0] for x in same)]


def _readers(graph: Graph, forward: int, backward: int) -> frozenset[int]:
    """Slots of the forward block that something other than itself and this backward of its layer uses."""
    owners: dict[int, set[tuple[int, str]]] = {}
    for segment in graph.segments:
        for storage in segment.storages:
            owners.setdefault(storage, set()).add((segment.block, segment.module))
    held = set(graph.facts.outputs)
    found: set[int] = set()
    for segment in graph.segments:
        if segment.block == forward:
            own = {(forward, segment.module), (backward, segment.module)}
            found.update(slot for slot, s in enumerate(segment.storages) if owners[s] - own or s in held)
    return frozenset(found)


class _Plan:
    """One forward block and its backward block."""

    def __init__(self, forward: Block, backward: Block, same: dict[int, int], shared: frozenset[int]) -> None:
        self.forward, self.backward = forward, backward
        self.slot_in_backward = dict(same)
        self.shared = shared
        self.storages = list(backward.storages)
        self.added: list[tuple[str, int]] = []
        self.dead: set[int] = set()
        self.recipe: dict[int, list[Op]] = {}  # dropped forward slot -> parts that make it

    def run(self) -> tuple[Block, Block, list[tuple[str, int]]]:
        """(forward, backward, storages added to backward)."""
        for op in self.forward.ops:
            for value in op.outputs if op.name == FUSED else ():
                if value.slot in self.slot_in_backward and value.slot not in self.shared:
                    self._consider(op, value)
        if not self.dead:
            return self.forward, self.backward, []
        dead = frozenset(self.dead)
        read = {v.slot for op in self.forward.ops for v in op.inputs}
        ops = tuple(without_dead_outputs(op, dead - read) if op.name == FUSED else op for op in self.forward.ops)
        forward = Block(self.forward.module, self.forward.phase, self.forward.storages, ops)
        return forward, self._rewired(), self.added

    def _consider(self, op: Op, value: Value) -> None:
        there = self.slot_in_backward[value.slot]
        if any(there in (v.slot for v in reader.inputs) for reader in self.backward.ops if reader.name != FUSED):
            return
        parts, sources = _slice(op.parts, value)
        if parts is None or any(s.slot in self.dead for s in sources):
            return
        storages = self.forward.storages
        new = {
            s.slot: int(storages[s.slot].nbytes)  # type: ignore[arg-type]
            for s in sources
            if s.slot not in self.slot_in_backward and storages[s.slot].kind == "activation"
        }
        if sum(new.values()) >= int(storages[value.slot].nbytes):  # type: ignore[arg-type]
            return
        self.dead.add(value.slot)
        self.recipe[value.slot] = parts
        for source in sources:
            self._bring(source.slot)

    def _bring(self, slot: int) -> None:
        """Make a forward slot known to backward."""
        if slot not in self.slot_in_backward:
            self.slot_in_backward[slot] = len(self.storages)
            self.storages.append(self.forward.storages[slot])
            self.added.append(("from", slot))

    def _scratch(self, storage: Storage) -> int:
        self.storages.append(storage)
        self.added.append(("new", 0))
        return len(self.storages) - 1

    def _rewired(self) -> Block:
        dropped = {self.slot_in_backward[slot]: slot for slot in self.dead}
        ops: list[Op] = []
        for op in self.backward.ops:
            hit = [slot for slot in dropped if op.name == FUSED and any(v.slot == slot for v in op.inputs)]
            if hit:
                first = [part for slot in hit for part in self._parts(dropped[slot])]
                outputs = {v.slot for v in op.outputs}
                op = fused((*first, op), outputs.__contains__)
            ops.append(op)
        return Block(self.backward.module, self.backward.phase, tuple(self.storages), tuple(ops))

    def _parts(self, slot: int) -> list[Op]:
        """The recipe of a dropped slot in backward's slots; what it makes on the way takes scratch slots."""
        local: dict[int, int] = {}

        def place(value: Value) -> Value:
            found = local.get(value.slot, self.slot_in_backward.get(value.slot))
            if found is None:
                found = local[value.slot] = self._scratch(self.forward.storages[value.slot])
            return replace(value, slot=found)

        return [
            replace(
                part, phase="backward", inputs=tuple(map(place, part.inputs)), outputs=tuple(map(place, part.outputs))
            )
            for part in self.recipe[slot]
        ]


def _slice(parts: Iterable[Op], value: Value) -> tuple[list[Op] | None, list[Value]]:
    """The parts of a kernel that make `value`, and what they read from outside. None where one draws random numbers."""
    wanted = {value.slot}
    taken: list[Op] = []
    every = list(parts)
    for part in reversed(every):
        if any(v.slot in wanted for v in part.outputs):
            taken.append(part)
            wanted.update(v.slot for v in part.inputs)
    taken.reverse()
    made = {v.slot for part in taken for v in part.outputs}
    if any("rand" in part.name or "dropout" in part.name or "bernoulli" in part.name for part in taken):
        return None, []
    sources = [v for part in taken for v in part.inputs if v.slot not in made]
    return taken, list({v.slot: v for v in sources}.values())
