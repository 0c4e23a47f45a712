"""Which activations backward makes again instead of reading what forward kept.

    full            every repeated layer keeps only what it was given, and runs forward again before its backward
    full:N          the first N layers of each pipeline stage do
    selective       the attention core (Q K^T, scale, mask, softmax, dropout, P V) runs again from q, k and v, just
                    before its backward [korthikanti2022, section 5]; under flash attention nothing is left to do
    modules:A+B     kinds of modules do, as Megatron Core's `--recompute-modules`, see recompute_modules
    selective-ops   every second linear layer's result, attention's and what reduce-scatter and all-to-all brought are
                    kept, the rest of a layer is made again where backward needs it, as torchtitan's selective AC per
                    op does (pytorch/torchtitan, torchtitan/distributed/activation_checkpoint.py)

What runs again repeats its collectives, and draws the same random numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..graph.errors import TorchperfError
from ..graph.graph import Graph
from .attention_pattern import forward_matches
from .recompute_build import Again, Builder
from .recompute_modules import KINDS, PREFIX, ByModule, kinds_of
from .recompute_region import Place, Region, Walk, regions

RECOMPUTE = ("none", "selective", "selective-ops", "full", "full:N", "modules:A+B")
LINEAR = ("aten.mm.default", "aten.addmm.default")
SAVED = (
    "aten._scaled_dot_product", "aten._flash_attention_forward", "aten._efficient_attention_forward",
    "torchperf.attention.", "torchperf.reduce_scatter", "torchperf.all_to_all", "aten.max.default", "aten.topk.",
)  # fmt: skip


def apply(graph: Graph, how: str, stages: Sequence[Sequence[str]] | None = None) -> Graph:
    """The graph under `--recompute how`. A model that checkpoints itself, or has no repeated layer, is left alone.

    stages  the layers of each pipeline stage, by path; None: one stage of all layers. Raises TorchperfError.
    """
    kind, count = parse(how)
    phases = {block.phase for block in graph.blocks}
    if kind == "none" or "recompute" in phases or "backward" not in phases:
        return graph
    every = regions(graph)
    chosen = _first_layers(graph, count, stages)
    builder = Builder(graph)
    cores: dict[int, list[frozenset[int]]] = {}
    modules = ByModule(graph, kinds_of(how), every) if kind == "modules" else None
    for region in every:
        if modules is not None:
            found = modules.again(region)
        elif kind == "selective":
            found = _cores(graph, region, cores)
        elif region.module not in chosen:
            continue
        else:
            found = iter([_whole(graph, region)] if kind == "full" else _saved_ops(Walk(graph, region)))
        for again in found:
            builder.add(region, again)
    return builder.program() if builder.before else graph


def parse(how: str) -> tuple[str, int | None]:
    """(kind, number of layers of a stage, None for all). Raises TorchperfError that names the flag and the choices."""
    kind, colon, number = how.partition(":")
    if colon and kind == "full" and number.isdecimal() and int(number) > 0:
        return kind, int(number)
    if how.startswith(PREFIX) and kinds_of(how):
        return kind, None
    if colon or kind not in RECOMPUTE:
        raise TorchperfError(
            f"unknown recompute `{how}`",
            facts=[("flag", "--recompute")],
            hint=f"one of {', '.join(RECOMPUTE)}, with N the layers of a pipeline stage, from 1, "
            f"and A, B of {', '.join(KINDS)}",
        )
    return kind, None


def _first_layers(graph: Graph, count: int | None, stages: Sequence[Sequence[str]] | None) -> frozenset[str]:
    """The layers to work on."""
    forward = (s.module for s in graph.segments if s.module and graph.blocks[s.block].phase == "forward")
    layers = list(dict.fromkeys(forward))
    stages = [layers] if stages is None else stages
    unknown = [layer for stage in stages for layer in stage if layer not in layers]
    if unknown:
        raise TorchperfError(
            f"a pipeline stage names `{unknown[0]}`, which is no repeated layer",
            facts=[("layers", ", ".join(layers) or "none")],
        )
    return frozenset(layer for stage in stages for layer in stage[:count])


def _whole(graph: Graph, region: Region) -> Again:
    """The whole forward of the region."""
    ops = tuple(
        (k, i) for k, s in enumerate(region.forward) for i in range(len(graph.blocks[graph.segments[s].block].ops))
    )
    return Again(ops, region.own, region.own)


def _cores(graph: Graph, region: Region, known: dict[int, list[frozenset[int]]]) -> Iterator[Again]:
    """The attention cores of the region, each on its own. `known`: slots that the cores of a block make."""
    walk: Walk | None = None
    for s in region.forward:
        segment = graph.segments[s]
        if segment.block not in known:
            block = graph.blocks[segment.block]
            known[segment.block] = [
                frozenset(v.slot for i in match.removed - {match.at} for v in block.ops[i].outputs)
                for match in forward_matches(block).values()
            ]
        for slots in known[segment.block]:
            walk = walk or Walk(graph, region)
            forgotten = frozenset(segment.storages[slot] for slot in slots) & region.own - region.shared
            wanted = walk.wanted() & forgotten
            if wanted:
                ops = walk.again(wanted, forgotten)
                yield Again(tuple(ops), _made(walk, ops), wanted, walk.first_use(wanted))


def _saved_ops(walk: Walk) -> Iterator[Again]:
    """All that backward needs of what the saved ops do not make."""
    region = walk.region
    kept: set[int] = set()
    hold: set[Place] = set()
    linear = 0
    for step in walk.forward:
        linear += step.op.name in LINEAR
        saved = linear % 2 if step.op.name in LINEAR else step.op.name.startswith(SAVED)
        if saved and all(walk.settled(i) for i in step.written):
            kept |= step.written & region.own
            hold.add(step.place)
    forgotten = region.own - region.shared - kept
    wanted = walk.wanted() & forgotten
    if wanted:
        ops = walk.again(wanted, forgotten)
        yield Again(tuple(ops), _made(walk, ops), wanted, hold=frozenset(hold))


def _made(walk: Walk, ops: list[Place]) -> frozenset[int]:
    """What these ops write of the region's own."""
    chosen = set(ops)
    return frozenset(i for step in walk.forward if step.place in chosen for i in step.written & walk.region.own)
