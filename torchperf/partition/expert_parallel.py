"""Expert parallelism: a bound graph and a number of ranks -> what each rank runs.

found = expert_parallel(graph, 8)
found.program       a Graph: E/8 experts a rank, rows exchanged before and after them by `torchperf.all_to_all`
found.parameters    the parameters whose gradients are complete after it, over the ranks of this axis

Every rank brings tokens of its own, so a rank's experts compute as many rows as it brings, in the mean; FLOPs stay.
Where rows end in each expert is exchanged too; those few bytes are not counted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from ..graph.errors import TorchperfError
from ..graph.graph import Graph, Parameter, Segment
from .choose import candidates, indivisible
from .expert_block import ExpertBlock, Shared
from .expert_walk import find_experts
from .factors import Factors, propagate


@dataclass(frozen=True, slots=True)
class ExpertParallel:
    """`program` is one rank's; `parameters` are the first names of those that are split by experts."""

    program: Graph
    parameters: frozenset[str]


def expert_parallel(
    graph: Graph, ranks: int, *, axis: str = "ep", stride: int = 1, imbalance: float = 1.0,
    factors: Factors | None = None,
) -> ExpertParallel:  # fmt: skip
    """Hand the experts of a bound graph (which may be a rank's of another axis) out over `ranks`.

    stride     distance in ranks between neighbours of the axis, written into the collectives
    imbalance  rows of the most loaded rank over the mean: ops of experts and their exchanges bear it as `load`,
               storages of experts' rows hold as much
    factors    of this very graph, where they are known

    Raises TorchperfError: no experts, experts in a form that cannot be split, or ranks that do not divide them.
    """
    if ranks < 1 or not math.isfinite(imbalance) or imbalance < 1:
        raise TorchperfError(
            "experts need at least 1 rank, and the most loaded has at least the mean of rows",
            facts=[("ranks", str(ranks)), ("imbalance", str(imbalance))],
            hint="give `--ep` and `--moe-imbalance` of at least 1",
        )
    if ranks == 1:
        return ExpertParallel(graph, frozenset())
    factors = propagate(graph) if factors is None else factors
    experts = find_experts(factors)
    for leaf in experts.leaves.values():
        if leaf.size % ranks:
            raise indivisible(factors, next(c for c in candidates(factors) if c.leaf.name == leaf.name), ranks)
    shared = Shared(experts, ranks, axis, stride, imbalance)
    order = dict.fromkeys(segment.block for segment in graph.segments)
    done = {b: ExpertBlock(shared, b) for b in order}
    blocks = {b: block.run() for b, block in done.items()}
    program = replace(
        graph,
        blocks=tuple(blocks.get(b, block) for b, block in enumerate(graph.blocks)),
        segments=_segments(graph, done),
    )
    parameters, names = _parameters(graph, shared)
    return ExpertParallel(replace(program, facts=replace(graph.facts, parameters=parameters)), names)


def _segments(graph: Graph, done: dict[int, ExpertBlock]) -> tuple[Segment, ...]:
    """Each call of a block with storages for what it exchanges, and with those that earlier calls exchanged for it."""
    fresh = graph.num_storages
    copies: dict[tuple[int, bool], int] = {}  # (storage, inside) -> the storage of its other form
    segments = []
    for segment in graph.segments:
        block = done[segment.block]
        more: list[int] = []
        for wanted in block.more:
            if wanted is None:
                more.append(fresh)
                fresh += 1
                continue
            slot, inside = wanted
            found = copies.get((segment.storages[slot], inside))
            if found is None:
                raise TorchperfError(
                    "experts cannot be split: some layers exchange what others do not, and one backward serves both",
                    facts=[("in", segment.module or block.block.phase)],
                )
            more.append(found)
        storages = (*segment.storages, *more)
        for (slot, inside), copy in block.exports.items():
            copies[segment.storages[slot], inside] = storages[copy]
        segments.append(Segment(segment.block, segment.module, storages))
    return tuple(segments)


def _parameters(whole: Graph, shared: Shared) -> tuple[tuple[Parameter, ...], frozenset[str]]:
    """The parameters with the shapes that one rank holds, and the first names of those that are split."""
    experts = shared.experts
    starred: dict[int, str] = {}
    for segment in whole.segments:
        for slot, storage in zip(segment.storages, whole.blocks[segment.block].storages, strict=True):
            if storage.kind == "param" and storage.name in experts.parameters:
                starred[slot] = storage.name or ""
    found, names = [], set()
    for parameter in whole.facts.parameters:
        local = parameter
        if parameter.storage in starred:
            names.add(parameter.names[0])
            factors = experts.factors
            dims = factors.parameters[factors.label(starred[parameter.storage], parameter.shape)]
            local = replace(parameter, shape=tuple(shared.split.local(dim) for dim in dims))
        found.append(local)
    return tuple(found), frozenset(names)
