"""Pipeline parallelism: which layers each stage runs, and what passes between stages.

A stage's program is the segments of its layers, forward and backward, out of the graph of one rank and one
micro-batch. What comes before the first layer (embedding) belongs to the first chunk, what comes after the last (head,
loss) to the last. A storage that is made from parameters in one chunk and read in a later one is sent, through every
chunk between; what comes from the inputs alone (positions, masks) is made again on each stage.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..graph.errors import TorchperfError
from ..graph.graph import Graph, Parameter, Segment
from ..graph.plan import Plan


@dataclass(frozen=True, slots=True)
class Chunk:
    """One virtual stage.

    index     its place in the order of the layers: rank + ranks * virtual index
    graph     its segments, its parameters; blocks are those of the whole graph
    layers    module paths
    sends     bytes passed on to the next chunk, forward, by one rank
    returns   bytes passed back to the chunk before, backward
    """

    index: int
    graph: Graph
    layers: tuple[str, ...]
    sends: int = 0
    returns: int = 0


def layers_of(graph: Graph) -> tuple[str, ...]:
    """Module paths of the repeated layers in the order of forward."""
    phases = [block.phase for block in graph.blocks]
    found = dict.fromkeys(s.module for s in graph.segments if s.module and phases[s.block] == "forward")
    return tuple(found)


def split_layers(num_layers: int, plan: Plan) -> tuple[int, ...]:
    """Layers of each chunk. Where they do not divide, the chunks at both ends, with embedding and head, have fewer."""
    chunks = plan.pp * plan.virtual_stages
    if plan.pp_split:
        if min(plan.pp_split) < 0:
            raise TorchperfError(
                f"`--pp-split` has a stage of {min(plan.pp_split)} layers",
                facts=[("layers", str(num_layers))],
                hint=f"give {chunks} numbers from 0 that add up to {num_layers}",
            )
        if sum(plan.pp_split) != num_layers:
            raise TorchperfError(
                f"`--pp-split` adds up to {sum(plan.pp_split)} layers",
                facts=[("layers", str(num_layers))],
                hint=f"give {chunks} numbers that add up to {num_layers}",
            )
        return plan.pp_split
    if chunks > num_layers:
        raise TorchperfError(
            f"`--pp {plan.pp}` makes {chunks} stages of {num_layers} layers",
            hint=f"give at most {num_layers} stages, virtual ones counted",
        )
    few, more = divmod(num_layers, chunks)
    sizes = [few] * chunks
    middle = sorted(range(chunks), key=lambda i: (abs(2 * i - chunks + 1), i))
    for i in middle[:more]:
        sizes[i] += 1
    return tuple(sizes)


def chunks_of(graph: Graph, plan: Plan) -> tuple[Chunk, ...]:
    """The virtual stages of a rank's program, in the order of the layers. Raises TorchperfError."""
    layers = layers_of(graph)
    if plan.pp * plan.virtual_stages == 1:
        return (Chunk(0, graph, layers),)
    if not layers:
        raise TorchperfError(
            f"`--pp {plan.pp}` needs repeated layers", facts=[("model", graph.facts.model)], hint="give `--pp 1`"
        )
    sizes = split_layers(len(layers), plan)
    place: dict[str, int] = {}
    at = 0
    for c, size in enumerate(sizes):
        place.update(dict.fromkeys(layers[at : at + size], c))
        at += size
    last = len(sizes) - 1
    owners = _owners(graph, place, last)
    segments: list[list[Segment]] = [[] for _ in sizes]
    for segment, owner in zip(graph.segments, owners, strict=True):
        segments[owner].append(segment)
    forward, backward = _crossings(graph, owners, last)
    found = []
    at = 0
    for c, size in enumerate(sizes):
        facts = replace(graph.facts, parameters=_parameters(graph, segments[c], first=c == 0))
        part = replace(graph, segments=tuple(segments[c]), facts=facts)
        found.append(Chunk(c, part, layers[at : at + size], forward[c], backward[c]))
        at += size
    return tuple(found)


def _owners(graph: Graph, place: dict[str, int], last: int) -> list[int]:
    """The chunk of each segment; one outside the layers goes with the layer that follows it, forward and backward."""
    owners: list[int | None] = [place.get(s.module) if s.module else None for s in graph.segments]
    following: int | None = None
    phase = ""
    for i in range(len(owners) - 1, -1, -1):
        now = graph.blocks[graph.segments[i].block].phase
        now = "backward" if now == "recompute" else now
        if now != phase:
            phase, following = now, None
        if owners[i] is not None:
            following = owners[i]
        elif following is not None:
            owners[i] = following
        else:  # nothing follows in this phase: the end of forward is the last chunk, the end of backward the first
            owners[i] = last if phase == "forward" else 0
    if "backward" in (graph.blocks[s.block].phase for s in graph.segments):  # head and loss lie before any layer
        for i, segment in enumerate(graph.segments):
            if graph.blocks[segment.block].phase in ("backward", "recompute"):
                if segment.module:
                    break
                owners[i] = last
    return [owner if owner is not None else 0 for owner in owners]


def _crossings(graph: Graph, owners: list[int], last: int) -> tuple[list[int], list[int]]:
    """Bytes that each chunk sends on forward, and back in backward, on one rank."""
    made: dict[int, tuple[int, str]] = {}
    weighty: set[int] = set()  # storages that depend on a parameter
    size: dict[int, int] = {}
    reach: dict[int, list[int]] = {}
    own = [_dependences(graph, b) for b in range(len(graph.blocks))]
    for segment, owner in zip(graph.segments, owners, strict=True):
        block = graph.blocks[segment.block]
        reads, weights, writes = own[segment.block]
        for slot, storage in enumerate(segment.storages):
            if slot in reads and storage in made and storage in weighty and block.phase == made[storage][1]:
                reach.setdefault(storage, []).append(owner)
        for slot, sources in writes.items():
            storage = segment.storages[slot]
            if block.storages[slot].kind != "activation":
                continue
            if storage not in made:
                made[storage] = (owner, block.phase)
                size[storage] = int(block.storages[slot].nbytes)  # type: ignore[arg-type]
            if slot in weights or any(segment.storages[s] in weighty for s in sources):
                weighty.add(storage)
    forward, backward = [0] * (last + 1), [0] * (last + 1)
    for storage, readers in reach.items():
        born, phase = made[storage]
        if phase == "forward":
            for c in range(born, max(readers)):
                forward[c] += size[storage]
        elif phase == "backward":
            for c in range(min(readers), born):
                backward[c + 1] += size[storage]
    return forward, backward


def _dependences(graph: Graph, b: int) -> tuple[set[int], set[int], dict[int, set[int]]]:
    """Of one block: slots read from outside, slots written that depend on a parameter, and of each the slots before."""
    reads: set[int] = set()
    weights: set[int] = set()
    writes: dict[int, set[int]] = {}
    block = graph.blocks[b]
    for op in block.ops:
        sources: set[int] = set()
        heavy = False
        into = {value.shape for value in op.outputs if block.storages[value.slot].kind == "grad"}
        for value in op.inputs:
            if value.slot in writes:
                sources |= writes[value.slot]
                heavy = heavy or value.slot in weights
            else:
                if (
                    value.shape not in into
                ):  # one use's gradient of a tied parameter is not sent: it is summed at the end
                    reads.add(value.slot)
                sources.add(value.slot)
                heavy = heavy or block.storages[value.slot].kind == "param"
        for value in op.outputs:
            writes.setdefault(value.slot, set()).update(sources)
            if heavy:
                weights.add(value.slot)
    return reads, weights, writes


def _parameters(graph: Graph, segments: list[Segment], first: bool) -> tuple[Parameter, ...]:
    """The parameters that these segments use; those that no op uses stay on the first chunk."""
    used: set[int] = set()
    for segment in segments:
        block = graph.blocks[segment.block]
        used.update(
            storage for slot, storage in zip(block.storages, segment.storages, strict=True) if slot.kind == "param"
        )
    return tuple(p for p in graph.facts.parameters if p.storage in used or (first and p.storage < 0))
