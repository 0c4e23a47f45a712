"""A whole program under one split of one mesh axis: every block once, states handed on through the segments."""

from __future__ import annotations

from dataclasses import dataclass, field

from .collective import Collective
from .masks import Split
from .partial import Outlook
from .place_block import BlockWalk
from .prepare import Prepared
from .state import BlockPlaced, Crossing

MAX_ROUNDS = 6


@dataclass(slots=True)
class Placement:
    """What a split asks of a program.

    blocks     per block: collectives, and the states of each op's operands
    conflicts  why the split is illegal; empty where it is legal
    rows       ids of the leaves that count the rows of experts
    """

    prepared: Prepared
    split: Split
    blocks: list[BlockPlaced] = field(default_factory=list)
    conflicts: list[str] = field(default_factory=list)
    rows: set[int] = field(default_factory=set)

    @property
    def collectives(self) -> list[Collective]:
        """Every collective once, in the order of the blocks; `count` says how often it runs."""
        return [c for block in self.blocks for c in block.collectives]

    def tally(self, *, roles: tuple[str, ...] = ("activation",)) -> dict[tuple[str, str, str], int]:
        """(module of the block, phase, kind) -> number in one run of the block, for collectives of these roles."""
        found: dict[tuple[str, str, str], int] = {}
        graph = self.prepared.factors.graph
        for c in self.collectives:
            if c.role in roles:
                key = (graph.blocks[c.block].module, c.phase, c.kind)
                found[key] = found.get(key, 0) + 1
        return found


def place(prepared: Prepared, split: Split) -> Placement:
    """Walk the program; where two segments hand different states to one block, settle it and walk again."""
    split.known = prepared.leaves
    settled: set[int] = set()
    forced: dict[tuple[int, int], Crossing] = {}
    for _ in range(MAX_ROUNDS):
        found = _walk(prepared, split, settled, forced)
        if found is not None:
            return found
    out = _walk(prepared, split, settled, forced, last=True)
    assert out is not None
    return out


def _walk(
    prepared: Prepared, split: Split, settled: set[int], forced: dict[tuple[int, int], Crossing], last: bool = False
) -> Placement | None:
    graph, classes = prepared.factors.graph, prepared.factors.classes
    outlook = Outlook(prepared, split, settled)
    out = Placement(prepared, split)
    placed: dict[int, BlockPlaced] = {}
    states: dict[int, Crossing] = {}
    rows = out.rows
    gathers: set[int] = set()  # classes of storages that forward gathers
    for segment, slots in zip(graph.segments, prepared.slots, strict=True):
        b = segment.block
        entry = {slots[s]: states[s] for s in sorted(states.keys() & slots.keys(), key=slots.__getitem__)}
        known = placed.get(b)
        if known is None:
            for (block, slot), crossing in forced.items():
                if block == b and slot not in entry:
                    entry[slot] = crossing
            known = placed[b] = _place(prepared, split, outlook, b, entry, rows, gathers)
            if graph.blocks[b].phase == "forward":
                gathers |= {classes.of[b][c.slot] for c in known.collectives if _is_gather(c)}
        elif entry or known.entry:
            again = _differing(b, entry, known, classes.of[b], settled, forced)
            if again and not last:
                return None
            if again:
                out.conflicts.append(
                    f"the calls of block {b} ({graph.blocks[b].module or 'the model'}) meet different states"
                )
        for slot, left in known.exit.items():
            if left is None:
                states.pop(segment.storages[slot], None)
            else:
                states[segment.storages[slot]] = left
    out.blocks = [placed.get(b, BlockPlaced({})) for b in range(len(graph.blocks))]
    out.conflicts += [text for block in out.blocks for text in block.conflicts]
    return out


def _is_gather(c: Collective) -> bool:
    return c.kind == "all_gather" and c.role == "activation"


def _place(
    prepared: Prepared, split: Split, outlook: Outlook, b: int, entry: dict[int, Crossing], rows: set[int],
    gathers: set[int],
) -> BlockPlaced:  # fmt: skip
    """One block; walked again where a gather had better come earlier."""
    chosen = frozenset(split.chosen)
    early: frozenset[int] = frozenset()
    while True:
        walk = BlockWalk(prepared, split, outlook, b, entry, rows, gathers, early)
        found = walk.run(chosen)
        if walk.earlier <= early:
            return found
        early |= walk.earlier


def _differing(
    b: int, entry: dict[int, Crossing], known: BlockPlaced, of: tuple[int, ...], settled: set[int],
    forced: dict[tuple[int, int], Crossing],
) -> bool:  # fmt: skip
    """Whether this call needs another walk: a sum that waits only sometimes is done before; a sequence split is cut."""
    again = False
    for slot in {*entry, *known.entry}:
        now, then = entry.get(slot), known.entry.get(slot)
        if (now and now[0]) == (then and then[0]):
            continue
        if any(c is not None and (c[0].partial or c[0].ragged) for c in (now, then)):
            if of[slot] not in settled:
                settled.add(of[slot])
                again = True
        elif now is not None and then is None and (b, slot) not in forced:
            forced[b, slot] = now
            again = True
    return again
