"""Context parallelism: a graph bound at one rank's share of the sequence -> what the rank runs.

Binding at S/n makes every op that looks at one position at a time local. Attention alone must see the whole sequence:
here its ops become ring attention (context_ring.py) or get all-to-alls (context_ulysses.py). Whatever else mixes
positions is an error (context_check.py).

program = context_parallel(capture.bind(batch=1, seq=local_sequence(32768, 8, "ring")), 8, kind="ring")
"""

from __future__ import annotations

from dataclasses import replace

from ..graph.errors import TorchperfError
from ..graph.graph import Block, Graph, Segment
from ..graph.plan import CP_KINDS
from .context_check import Sequence, attends_over, own_attention
from .context_ring import ring
from .context_storages import Group, Scratch
from .context_ulysses import ulysses
from .factors import propagate


def local_sequence(seq: int, ranks: int, kind: str, *, causal: bool = True, longest: int | None = None) -> int:
    """Positions of one rank; causal ring attention cuts a sequence in 2 ranks chunks. Raises TorchperfError.

    longest   positions that the model has
    """
    chunks = 2 * ranks if kind == "ring" and causal and ranks > 1 else ranks
    if seq % chunks:
        near = [n for n in (seq // chunks * chunks, (seq // chunks + 1) * chunks) if 0 < n <= (longest or n)]
        raise TorchperfError(
            f"a sequence of {seq} is not cut into {chunks} equal chunks",
            facts=[("flags", f"--cp {ranks} --cp-kind {kind}"), ("nearest", " or ".join(map(str, near)) or "none")],
            hint=f"`--seq-len {near[-1]}`" if near else "give fewer ranks",
        )
    return seq // ranks


def context_parallel(graph: Graph, ranks: int, *, kind: str, axis: str = "cp", stride: int = 1) -> Graph:
    """What each of `ranks` ranks runs, `graph` being bound at its share of the sequence; every rank the same.

    kind     ring | ulysses
    stride   devices between neighbours on the axis
    Raises TorchperfError where attention is of a form that `kind` cannot split: windows and sinks in a ring, heads
    that do not divide under Ulysses, a bias over positions; and where none goes along a sequence of the inputs. Only
    `torchperf.attention` is split: run `context_check.check` for all else.
    """
    if kind not in CP_KINDS:
        raise TorchperfError(f"unknown `--cp-kind {kind}`", hint=f"one of {', '.join(CP_KINDS)}")
    if ranks < 1 or stride < 1:
        raise TorchperfError(f"`--cp {ranks}` with ranks {stride} apart: both must be at least 1")
    if ranks == 1:
        return graph
    group = Group(axis, ranks, stride)
    factors = propagate(graph)
    sequence = Sequence(factors)
    blocks: list[Block] = []
    added: list[list[tuple[int, str] | None]] = []
    for b, block in enumerate(graph.blocks):
        scratch = Scratch(block)
        ops = []
        for i, op in enumerate(block.ops):
            if own_attention(op) and attends_over(sequence, factors.blocks[b][i]):
                ops += ring(op, group, scratch) if kind == "ring" else ulysses(op, group, scratch)
            else:
                ops.append(op)
        changed = len(ops) != len(block.ops)
        blocks.append(Block(block.module, block.phase, tuple(scratch.storages), tuple(ops)) if changed else block)
        added.append(scratch.shared)
    if not any(added):
        raise TorchperfError(
            "no attention goes along a sequence of the inputs",
            facts=[("flags", f"--cp {ranks} --cp-kind {kind}"), ("model", graph.facts.model)],
            hint="`--attention flash` where the model writes attention out; else leave out `--cp`",
        )
    return replace(graph, blocks=tuple(blocks), segments=_segments(graph, added))


def _segments(graph: Graph, added: list[list[tuple[int, str] | None]]) -> tuple[Segment, ...]:
    """The calls with storages for the added slots; what forward keeps is the same storage in backward."""
    fresh = graph.num_storages
    kept: dict[tuple[int, str], int] = {}
    segments = []
    for segment in graph.segments:
        new = []
        for shared in added[segment.block]:
            key = None if shared is None else (segment.storages[shared[0]], shared[1])
            storage = fresh if key is None else kept.setdefault(key, fresh)
            fresh += storage == fresh
            new.append(storage)
        segments.append(replace(segment, storages=(*segment.storages, *new)) if new else segment)
    return tuple(segments)
