"""Full recompute: every repeated layer keeps only what it was given, and runs forward again before its backward."""

from __future__ import annotations

from dataclasses import replace

from ..graph.errors import TorchperfError
from ..graph.graph import Block, Graph, Segment

RECOMPUTE = ("none", "full")


def apply(graph: Graph, how: str) -> Graph:
    """The graph under `--recompute how`. A model that checkpoints itself, or has no repeated layer, is left alone."""
    if how not in RECOMPUTE:
        raise TorchperfError(
            f"unknown recompute `{how}`", facts=[("flag", "--recompute")], hint=f"one of {', '.join(RECOMPUTE)}"
        )
    phases = {block.phase for block in graph.blocks}
    if how == "none" or "recompute" in phases or "backward" not in phases:
        return graph
    blocks = list(graph.blocks)
    again: dict[int, int] = {}  # forward block -> its recompute twin
    fresh = graph.num_storages
    renamed: dict[str, dict[int, int]] = {}  # layer -> storage -> what stands for it in backward
    forward: dict[str, list[Segment]] = {}
    for segment in graph.segments:
        if segment.module and blocks[segment.block].phase == "forward":
            forward.setdefault(segment.module, []).append(segment)
    segments: list[Segment] = []
    for segment in graph.segments:
        layer = segment.module
        if not layer or graph.blocks[segment.block].phase != "backward" or layer not in forward:
            segments.append(segment)
            continue
        if layer not in renamed:
            names = renamed[layer] = {}
            for first in forward[layer]:
                block = graph.blocks[first.block]
                made = {value.slot for op in block.ops for value in op.outputs}
                for slot, storage in enumerate(first.storages):
                    if slot in made and block.storages[slot].kind == "activation" and storage not in names:
                        names[storage] = fresh
                        fresh += 1
                if first.block not in again:
                    again[first.block] = len(blocks)
                    blocks.append(_twin(block))
                segments.append(Segment(again[first.block], layer, tuple(names.get(s, s) for s in first.storages)))
        names = renamed[layer]
        segments.append(Segment(segment.block, layer, tuple(names.get(s, s) for s in segment.storages)))
    return replace(graph, blocks=tuple(blocks), segments=tuple(segments))


def _twin(block: Block) -> Block:
    return Block(block.module, "recompute", block.storages, tuple(replace(op, phase="recompute") for op in block.ops))
