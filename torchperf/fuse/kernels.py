"""The whole program: each block's chains, then what backward can make again instead of reading."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..graph.graph import Graph
from ..graph.work import Work
from .chains import group
from .remake import remake


def fuse(graph: Graph, works: Sequence[Sequence[Work]], outside: bool = True) -> Graph:
    """The program of a runtime that fuses: `works` are the works of its ops, block by block.

    outside   whether what no repeated layer holds (embedding, head, loss) is fused too
    """
    escaping = escaping_slots(graph)
    chosen = {segment.block for segment in graph.segments if outside or segment.module}
    blocks = tuple(
        group(block, row, escaping[b]) if block.phase != "optimizer" and b in chosen else block
        for b, (block, row) in enumerate(zip(graph.blocks, works, strict=True))
    )
    return remake(replace(graph, blocks=blocks))


def escaping_slots(graph: Graph) -> list[frozenset[int]]:
    """For each block the slots that some other segment uses, or that the caller holds."""
    segments_of: dict[int, int] = {}
    for segment in graph.segments:
        for storage in set(segment.storages):
            segments_of[storage] = segments_of.get(storage, 0) + 1
    held = set(graph.facts.outputs)
    found: list[set[int]] = [set() for _ in graph.blocks]
    for segment in graph.segments:
        for slot, storage in enumerate(segment.storages):
            kind = graph.blocks[segment.block].storages[slot].kind
            if segments_of[storage] > 1 or storage in held or kind != "activation":
                found[segment.block].add(slot)
    return [frozenset(slots) for slots in found]
