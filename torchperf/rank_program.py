"""What one rank of a plan runs, for people and programs to read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from . import hardware
from .annotate import work
from .graph.errors import TorchperfError
from .graph.graph import Block, Capture, Graph
from .graph.plan import Plan
from .local_program import How, LocalProgram, local_program
from .partition.fully_sharded import Sharding, fully_sharded
from .partition.plan_file import plan_of
from .partition.replicas import gradient_sync, groups
from .partition.stages import Chunk, chunks_of
from .partition.tensor_parallel import tensor_parallel
from .pipeline import bound_graph


@dataclass(frozen=True, slots=True)
class Exchange:
    """One collective of a rank: `calls` times in a micro-batch (once a step where `phase` is optimizer).

    nbytes   the whole tensor, as nccl-tests counts
    """

    kind: str
    axis: str
    ranks: int
    phase: str
    module: str
    role: str
    nbytes: int
    calls: int


@dataclass(frozen=True, slots=True)
class RankProgram:
    """`program` is one rank's over the whole depth, with local shapes; `chunks` are the pipeline's parts of it.

    `text` tells each parameter's split and why, the stages and the collectives.
    """

    model: str
    plan: Plan
    program: Graph
    chunks: tuple[Chunk, ...]
    collectives: tuple[Exchange, ...]
    text: str

    def as_dict(self) -> dict[str, Any]:
        """Plan, parameters, stages and collectives, with units in their keys."""
        return {
            "model": self.model,
            "plan": asdict(self.plan) | {"pp_split": list(self.plan.pp_split)},
            "parameters": [
                {"name": p.names[0], "local_shape": list(p.shape), "dtype": p.dtype}
                for p in self.program.facts.parameters
            ],
            "stages": [
                {"layers": list(c.layers), "sends_bytes": c.sends, "returns_bytes": c.returns} for c in self.chunks
            ],
            "collectives": [_as_dict(c) for c in self.collectives],
        }


def _as_dict(c: Exchange) -> dict[str, Any]:
    found = asdict(c)
    found["size_bytes"] = found.pop("nbytes")
    return found


def split(
    model: str | Capture, *, num_gpus: int | None = None, mode: str = "train", seq_len: int | None = None,
    micro_batch: int | None = None, runtime: str = "eager", plan: Plan | None = None, **parallelism: Any,
) -> RankProgram:  # fmt: skip
    """What a rank of `model` runs under a plan (a `Plan`, or its fields one by one). Raises TorchperfError."""
    runs_on = hardware.load_runtime(runtime)
    asked = replace(plan or Plan(), **parallelism)
    graph = bound_graph(model, mode, micro_batch or asked.micro_batch or None, seq_len)
    shards = runs_on.training.parameters == "shard"
    resolved = runs_on.training.runs(asked.resolved(num_gpus or 0, graph.size("batch") or 1, shards=shards))
    if resolved.num_gpus == 1:
        raise TorchperfError("one device: nothing is split", hint="give `--tp`, `--pp`, `--cp`, `--ep` or `--dp`")
    seq = graph.size("seq")

    def bind(length: int | None) -> Graph:
        return graph if length == seq else bound_graph(model, mode, graph.size("batch"), length)

    local = local_program(bind, seq, resolved, How(precision="bf16-mixed"), runs_on)
    chunks = chunks_of(local.graph, resolved)
    program = _sharded(local, resolved)
    found = (*exchanges(program), *_once(local, resolved, round(runs_on.training.bucket.value)))
    return RankProgram(graph.facts.model, resolved, program, chunks, found, _text(graph, resolved, chunks, found))


def _sharded(local: LocalProgram, plan: Plan) -> Graph:
    if plan.zero_stage < 3:
        return local.graph
    dense, experts = groups(plan).shard, groups(plan, experts=True).shard
    return fully_sharded(local.graph, Sharding(dense, experts, local.experts, plan.reshard, reduce=plan.reduce_dtype))


def exchanges(graph: Graph) -> tuple[Exchange, ...]:
    """The collectives of a program, equal ones of a block together."""
    tally: dict[Exchange, int] = {}
    for count, block in zip(graph.counts, graph.blocks, strict=True):
        for one in _of(block):
            tally[one] = tally.get(one, 0) + count
    return tuple(replace(one, calls=calls) for one, calls in tally.items() if calls)


def _of(block: Block) -> Iterator[Exchange]:
    for op in block.ops:
        done = work(op) if op.name.startswith("torchperf.") and op.attr("ranks") is not None else None
        if done is not None and done.kind == "collective":
            axis, ranks, role = str(op.attr("axis")), int(op.attr("ranks")), str(op.attr("role", ""))
            steps = dict(done.dims).get("steps", 1)
            yield Exchange(done.equation, axis, ranks, block.phase, block.module, role, done.dim("nbytes") * steps, 1)


def _once(local: LocalProgram, plan: Plan, bucket: int) -> Iterator[Exchange]:
    """Those of a step, of the parameters of all stages."""
    if local.graph.facts.mode != "train":
        return
    sync = gradient_sync(local.graph.facts.parameters, plan, local.experts, bucket, "bf16")
    for block in (sync.reduce, sync.gather):
        tally: dict[Exchange, int] = {}
        for one in _of(block):
            tally[one] = tally.get(one, 0) + 1
        yield from (replace(one, calls=calls) for one, calls in tally.items())


def _text(graph: Graph, plan: Plan, chunks: tuple[Chunk, ...], found: tuple[Exchange, ...]) -> str:
    lines = []
    if plan.tp > 1:
        placed = tensor_parallel(
            graph, plan.tp, sequence=plan.sequence_parallel, plan=plan_of(graph, plan.tp_plan),
            local_experts=plan.expert_tp < plan.tp,
        )  # fmt: skip
        lines += str(placed.plan).splitlines()
    if plan.pp > 1:
        for chunk in chunks:
            named = f"{chunk.layers[0]} to {chunk.layers[-1]}" if chunk.layers else "no layer"
            lines.append(
                f"stage {chunk.index % plan.pp}, chunk {chunk.index // plan.pp}: {named}; "
                f"sends {chunk.sends} bytes on, {chunk.returns} back"
            )
    lines.append("collectives of a rank, all stages, a micro-batch (optimizer: a step)")
    for c in found:
        where = c.module or "outside layers"
        lines.append(
            f"  {c.calls} {c.kind} over {c.axis} {c.ranks} of {c.nbytes} bytes in {where}, {c.phase} ({c.role})"
        )
    return "\n".join(lines) + "\n"
