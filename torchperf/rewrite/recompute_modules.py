"""Recompute by kinds of modules, as Megatron Core's `--recompute-granularity selective --recompute-modules`.

core_attn, mlp, moe and shared_experts run again whole from their input; layernorm, moe_act and mla_up_proj also forget
their results (output-discarding). What runs again does so just before backward first needs any of it; norms as soon as
backward enters the module that reads them, where Megatron hooks them. Groups of which one reads what another forgets
run again together.

source  megatron/core/transformer/transformer_config.py (`recompute_modules`), tensor_parallel/random.py
        (`CheckpointWithoutOutput`) of NVIDIA/Megatron-LM
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ..graph.errors import TorchperfError
from ..graph.graph import Graph
from .recompute_build import Again
from .recompute_kinds import Group, groups, lacking
from .recompute_region import Place, Region, Walk

KINDS = ("core_attn", "layernorm", "moe_act", "mla_up_proj", "mlp", "moe", "shared_experts")
PREFIX = "modules:"


def kinds_of(how: str) -> tuple[str, ...]:
    """`modules:layernorm+mlp` -> ("layernorm", "mlp"). Raises TorchperfError that names what is no kind."""
    asked = how.removeprefix(PREFIX).split("+")
    wrong = [kind for kind in asked if kind not in KINDS]
    if wrong or len(set(asked)) < len(asked):
        fault = f"no kind of module `{wrong[0]}`" if wrong else "a kind of module is named twice"
        raise TorchperfError(
            f"unknown recompute `{how}`: {fault}",
            facts=[("flag", "--recompute")],
            hint=f"any of {', '.join(KINDS)}, joined by `+`",
        )
    return tuple(asked)


@dataclass(frozen=True, slots=True)
class _Part:
    """A group in one region: its ops, what they forget and read; `whole` are those that run in any case."""

    kinds: frozenset[str]
    ops: frozenset[Place]
    whole: frozenset[Place]
    forgotten: frozenset[int]
    read: frozenset[int]


class ByModule:
    """What each region of a graph runs again. Raises TorchperfError where no layer has a kind."""

    def __init__(self, graph: Graph, kinds: Sequence[str], every: Iterable[Region]) -> None:
        self.graph = graph
        used = {graph.segments[s].block for region in every if region.module for s in region.forward}
        self.groups: dict[int, tuple[Group, ...]] = {}
        for b in sorted(used):
            self.groups[b] = tuple(group for group in groups(graph.blocks[b]) if group.kind in kinds)
        found = {group.kind for own in self.groups.values() for group in own}
        for kind in kinds:
            if used and kind not in found and kind != "core_attn":  # under flash attention nothing is left of it
                raise lacking(kind)

    def again(self, region: Region) -> Iterator[Again]:
        """Parts that do not need one another, each on its own."""
        own = [(k, g) for k, s in enumerate(region.forward) for g in self.groups.get(self.graph.segments[s].block, ())]
        if not own or not region.module:
            return
        walk = Walk(self.graph, region)
        spoiled = _spoiled(walk)
        for part in _merged([_part(walk, k, group) for k, group in own]):
            wanted = walk.wanted() & part.forgotten
            if not wanted:
                continue
            ops = _ops(walk, part, wanted)
            made = frozenset(i for step in walk.forward if step.place in ops for i in step.written & region.own)
            _check(walk, ops, made, spoiled)
            at = walk.first_use(wanted)
            if "layernorm" in part.kinds:
                at = _entry(walk, at, self.graph.blocks[self.graph.segments[region.backward[at[0]]].block].module)
            yield Again(tuple(sorted(ops)), made, wanted, at)


def _part(walk: Walk, k: int, group: Group) -> _Part:
    """A group as places and storages of the region."""
    region = walk.region
    ops = frozenset((k, i) for i in group.ops)
    mine = [step for step in walk.forward if step.place in ops]
    made = {i for step in mine for i in step.written} & region.own - region.shared
    for step in walk.forward:
        if step.place not in ops:
            made -= step.written
            made -= step.read if group.whole else frozenset()
    read = frozenset(i for step in mine for i in step.read)
    ops = frozenset(step.place for step in mine)
    return _Part(frozenset({group.kind}), ops, ops if group.whole else frozenset(), frozenset(made), read)


def _entry(walk: Walk, at: Place, layer: str) -> Place:
    """Where backward enters the part of the layer in which that place lies."""

    def part(module: str) -> str:
        return module.removeprefix(f"{layer}.").partition(".")[0] if module.startswith(f"{layer}.") else ""

    here = next(n for n, step in enumerate(walk.backward) if step.place == at)
    name = part(walk.backward[here].op.module)
    while (
        name and here and walk.backward[here - 1].place[0] == at[0] and part(walk.backward[here - 1].op.module) == name
    ):
        here -= 1
    return walk.backward[here].place


def _merged(parts: list[_Part]) -> list[_Part]:
    """Parts that share ops, or of which one reads what the other forgets, as one."""
    found: list[_Part] = []
    for part in parts:
        apart = []
        for other in found:
            if part.ops & other.ops or part.read & other.forgotten or other.read & part.forgotten:
                part = _Part(
                    part.kinds | other.kinds, part.ops | other.ops, part.whole | other.whole,
                    part.forgotten | other.forgotten, part.read | other.read,
                )  # fmt: skip
            else:
                apart.append(other)
        found = [*apart, part]
    return found


def _ops(walk: Walk, part: _Part, wanted: frozenset[int]) -> set[Place]:
    """The ops that make `wanted`, and those that run in any case, with what they read."""
    read = {i for step in walk.forward if step.place in part.whole for i in step.read | step.written}
    return set(walk.again(wanted | (part.forgotten & read), part.forgotten)) | part.whole


def _spoiled(walk: Walk) -> set[int]:
    """Storages that are written again after something read them: at the end they hold no longer what it read."""
    read: set[int] = set()
    found: set[int] = set()
    for step in walk.forward:
        found |= step.written & read
        read |= step.read - step.written
    return found


def _check(walk: Walk, ops: set[Place], made: frozenset[int], spoiled: set[int]) -> None:
    """What runs again must find what it read the first time."""
    ready: set[int] = set()
    for step in walk.forward:
        if step.place not in ops:
            continue
        lost = (step.read & made) - ready or (step.read - made) & spoiled
        if lost:
            raise TorchperfError(
                "what a module reads is overwritten before it could run again",
                facts=[("op", f"`{step.op.name}` in `{step.op.module}`"), ("flag", "--recompute")],
                hint="recompute another kind of module, or `full`",
            )
        ready |= step.written
