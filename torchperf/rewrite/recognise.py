"""Attention written out as matmul, softmax, matmul -> our attention op, forward and backward together.

    forward    bmm(q, k^T), then scale, mask, casts; softmax; casts, dropout; bmm(p, v)
    backward   bmm(p^T, do), bmm(do, v^T); dropout, softmax backward, casts, mask, scale; bmm(ds, k), bmm(q^T, ds)

A mask that came as a tensor is kept as a bias: all pairs are computed. Where anything else reads a value of the
chain (a bias that is learned, returned attention weights), the chain is left as it is.
"""

from __future__ import annotations

from dataclasses import replace

from ..graph.graph import Block, Graph
from ..graph.op import Op
from .attention_pattern import Match, backward_matches, forward_matches, internal, is_view, only_removed


def recognise(graph: Graph) -> Graph:
    """The graph with written-out attention as one op, wherever forward and backward both have the form."""
    phases = [block.phase for block in graph.blocks]
    forward = {b: forward_matches(graph.blocks[b]) for b, p in enumerate(phases) if p in ("forward", "recompute")}
    backward = {b: backward_matches(graph.blocks[b]) for b, p in enumerate(phases) if p == "backward"}
    train = any(block.phase == "backward" for block in graph.blocks)
    linked = _linked(graph, forward, backward) if train else {(b, p) for b, found in forward.items() for p in found}
    blocks = list(graph.blocks)
    for b, found in (*forward.items(), *backward.items()):
        chosen = [match for probs, match in found.items() if (b, probs) in linked]
        if chosen:
            blocks[b] = _replaced(blocks[b], chosen)
    return replace(graph, blocks=tuple(blocks))


def _linked(
    graph: Graph, forward: dict[int, dict[int, Match]], backward: dict[int, dict[int, Match]]
) -> set[tuple[int, int]]:
    """(block, softmax slot) of the matches that meet their counterpart in every segment."""
    makers: dict[int, set[tuple[int, int]]] = {}
    users: dict[int, set[tuple[int, int]]] = {}
    touched: dict[int, set[tuple[int, int]]] = {}
    for segment in graph.segments:
        b = segment.block
        for probs in forward.get(b, {}):
            makers.setdefault(segment.storages[probs], set()).add((b, probs))
        for probs in backward.get(b, {}):
            users.setdefault(segment.storages[probs], set()).add((b, probs))
        for slot, storage in enumerate(segment.storages):
            touched.setdefault(storage, set()).add((b, slot))
    bad: set[tuple[int, int]] = set()
    pairs: set[tuple[tuple[int, int], tuple[int, int]]] = set()
    for segment in graph.segments:
        for side, other in ((forward, users), (backward, makers)):
            for probs in side.get(segment.block, {}):
                here = (segment.block, probs)
                there = other.get(segment.storages[probs], set())
                if len(there) != 1:
                    bad.add(here)
                else:
                    pairs.add((here, next(iter(there))))
    bad |= _read_elsewhere(graph, forward, backward, touched)
    grew = True
    while grew:
        more = {match for pair in pairs if bad.intersection(pair) for match in pair}
        grew = not more <= bad
        bad |= more
    every = {(b, p) for side in (forward, backward) for b, found in side.items() for p in found}
    return every - bad


def _read_elsewhere(
    graph: Graph, forward: dict[int, dict[int, Match]], backward: dict[int, dict[int, Match]],
    touched: dict[int, set[tuple[int, int]]],
) -> set[tuple[int, int]]:  # fmt: skip
    """Matches whose values something that stays reads in another block, e.g. the backward of a learned bias."""
    every = {b: (*forward.get(b, {}).values(), *backward.get(b, {}).values()) for b in range(len(graph.blocks))}
    bad: set[tuple[int, int]] = set()
    for segment in graph.segments:
        for match in every[segment.block]:
            for slot in internal(graph.blocks[segment.block], match):
                for block, there in touched[segment.storages[slot]]:
                    if block != segment.block and not any(
                        only_removed(graph.blocks[block], there, other) for other in every[block]
                    ):
                        bad.add((segment.block, match.probs))
    return bad


def _replaced(block: Block, matches: list[Match]) -> Block:
    removed = {i for match in matches for i in match.removed}
    gone = {slot for match in matches for slot in internal(block, match)} | {m.probs for m in matches}
    at = {match.at: match.op for match in matches}
    storages = list(block.storages)
    for match in matches:
        sums = next(v for v in (*match.op.outputs, *match.op.inputs) if v.slot == match.probs)
        storages[match.probs] = replace(storages[match.probs], nbytes=sums.numel * 4)
    ops: list[Op] = []
    for i, op in enumerate(block.ops):
        if i in at:
            ops.append(at[i])
        elif i not in removed and not (is_view(op) and any(v.slot in gone for v in op.outputs)):
            ops.append(op)
    return Block(block.module, block.phase, tuple(storages), tuple(ops))
