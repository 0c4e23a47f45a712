"""What one rank of a plan runs, for people and programs to read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from . import hardware
from .annotate import work
from .effect import check_plan
from .graph.errors import TorchperfError
from .graph.graph import Capture, Graph
from .graph.op import Op
from .graph.plan import Plan
from .graph.runtime import Training
from .local_program import How, LocalProgram, local_program
from .partition.fully_sharded import fully_sharded
from .partition.infer import Inferred
from .partition.plan_file import plan_of
from .partition.replicas import mirror, sharding
from .partition.stages import Chunk, chunks_of
from .partition.tensor_parallel import tensor_parallel
from .partition.why import Reason, reasons
from .pipeline import bound_graph
from .rewrite.precision import precision
from .step import rank_chunks
from .step_ops import once_a_step, sends


@dataclass(frozen=True, slots=True)
class Exchange:
    """One collective or transfer of a rank: `calls` times in a micro-batch (in a step where `phase` is optimizer).

    nbytes   the whole tensor, as nccl-tests counts
    stages   pipeline ranks that run it
    """

    kind: str
    axis: str
    ranks: int
    phase: str
    module: str
    role: str
    nbytes: int
    calls: int
    stages: tuple[int, ...] = (0,)


@dataclass(frozen=True, slots=True)
class Pass:
    """One pass of the optimizer a step: over `numel` elements, reading and writing `nbytes`."""

    kind: str
    numel: int
    nbytes: int
    stages: tuple[int, ...] = (0,)


@dataclass(frozen=True, slots=True)
class RankProgram:
    """`program` is one rank's over the whole depth, with local shapes; `chunks` are the pipeline's parts of it.

    `reasons` tells of each parameter what tensor parallelism splits and why; `text` also stages and collectives.
    """

    model: str
    plan: Plan
    program: Graph
    chunks: tuple[Chunk, ...]
    collectives: tuple[Exchange, ...]
    text: str
    passes: tuple[Pass, ...] = ()
    reasons: tuple[Reason, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Plan, parameters and why they are split, stages, collectives, passes; with units in their keys."""
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
            "placement": [
                {"parameter": r.parameter, "dims": r.dims, "split": r.split, "why": r.why, "saved_s": r.saved}
                for r in self.reasons
            ],
            "collectives": [_as_dict(c) for c in self.collectives],
            "passes": [_as_dict(p) for p in self.passes],
        }


def _as_dict(one: Exchange | Pass) -> dict[str, Any]:
    found = asdict(one)
    found["size_bytes"], found["stages"] = found.pop("nbytes"), list(one.stages)
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
    resolved = asked.resolved(num_gpus or 0, graph.size("batch") or 1, shards=shards)
    check_plan(asked, resolved, graph)
    resolved = runs_on.training.runs(resolved)
    if resolved.num_gpus == 1:
        raise TorchperfError("one device: nothing is split", hint="give `--tp`, `--pp`, `--cp`, `--ep` or `--dp`")
    seq = graph.size("seq")

    def bind(length: int | None) -> Graph:
        return graph if length == seq else bound_graph(model, mode, graph.size("batch"), length)

    how = How(precision="bf16-mixed")
    local = local_program(bind, seq, resolved, how, runs_on)
    chunks = chunks_of(local.graph, resolved)
    shards_of = sharding(resolved, local.experts)
    program = fully_sharded(local.graph, shards_of) if shards_of else local.graph
    found, passes = _ranks(local, resolved, chunks, runs_on.training, how)
    placed = _placed(graph, resolved)
    text = _text(placed, resolved, chunks, found, passes)
    why = reasons(placed) if placed else ()
    return RankProgram(graph.facts.model, resolved, program, chunks, found, text, passes, why)


def _placed(graph: Graph, plan: Plan) -> Inferred | None:
    if plan.tp == 1:
        return None
    return tensor_parallel(
        graph, plan.tp, sequence=plan.sequence_parallel, plan=plan_of(graph, plan.tp_plan),
        local_experts=plan.expert_tp < plan.tp,
    ).plan  # fmt: skip


def _ranks(
    local: LocalProgram, plan: Plan, chunks: tuple[Chunk, ...], training: Training, how: How
) -> tuple[tuple[Exchange, ...], tuple[Pass, ...]]:
    """What each pipeline rank exchanges, and its passes over parameters; ranks that do the same together."""
    found: dict[Exchange, list[int]] = {}
    passes: dict[Pass, list[int]] = {}
    shards = sharding(plan, local.experts)
    for rank, own in enumerate(rank_chunks(plan)):
        tally: dict[Exchange, int] = {}
        for chunk in (chunks[c] for c in own):
            graph = fully_sharded(chunk.graph, shards) if shards else chunk.graph
            for one in exchanges(graph):
                _count(tally, replace(one, calls=0), one.calls)
            for nbytes, phase in ((chunk.sends, "forward"), (chunk.returns, "backward")):
                for one in _of(sends(plan, training, nbytes, phase)):
                    _count(tally, one, 1)
        if local.graph.facts.mode == "train":
            parameters = tuple(p for c in own for p in chunks[c].graph.facts.parameters)
            to = precision(how.precision)
            once = once_a_step(plan, parameters, local, training, how.optimizer, to, mirror(plan, rank))
            for one in _of((*once.reduce, *once.gather, *once.model_wide)):
                _count(tally, one, 1)
            for op in once.passes:
                kind = op.name.removeprefix("torchperf.")
                passes.setdefault(Pass(kind, int(op.attr("numel")), work(op).nbytes), []).append(rank)
        for one, calls in tally.items():
            found.setdefault(replace(one, calls=calls), []).append(rank)
    return (
        tuple(replace(one, stages=tuple(ranks)) for one, ranks in found.items()),
        tuple(replace(one, stages=tuple(ranks)) for one, ranks in passes.items()),
    )


def _count(tally: dict[Exchange, int], one: Exchange, calls: int) -> None:
    tally[one] = tally.get(one, 0) + calls


def exchanges(graph: Graph) -> tuple[Exchange, ...]:
    """The collectives of a program, equal ones of a block together."""
    tally: dict[Exchange, int] = {}
    for count, block in zip(graph.counts, graph.blocks, strict=True):
        if count:
            for one in _of(block.ops, block.module, block.phase):
                _count(tally, one, count)
    return tuple(replace(one, calls=calls) for one, calls in tally.items())


def _of(ops: Iterable[Op], module: str = "", phase: str = "") -> Iterator[Exchange]:
    """Collectives and transfers between two ranks or more; `phase` where it is not that of the ops."""
    for op in ops:
        done = work(op) if op.name.startswith("torchperf.") and op.attr("ranks", 1) != 1 else None
        if done is not None and done.kind == "collective":
            axis, ranks, role = str(op.attr("axis")), int(op.attr("ranks")), str(op.attr("role", ""))
            steps = dict(done.dims).get("steps", 1)
            nbytes = round(done.dim("nbytes") * steps * float(op.attr("load", 1)))
            yield Exchange(done.equation, axis, ranks, phase or op.phase, module, role, nbytes, 0)


def _text(
    placed: Inferred | None, plan: Plan, chunks: tuple[Chunk, ...], found: tuple[Exchange, ...],
    passes: tuple[Pass, ...],
) -> str:  # fmt: skip
    lines = str(placed).splitlines() if placed else []
    if plan.pp > 1:
        for chunk in chunks:
            named = f"{chunk.layers[0]} to {chunk.layers[-1]}" if chunk.layers else "no layer"
            lines.append(
                f"stage {chunk.index % plan.pp}, chunk {chunk.index // plan.pp}: {named}; "
                f"sends {chunk.sends} bytes on, {chunk.returns} back"
            )
    each = " of either direction" if plan.schedule == "dualpipe" and plan.pp > 1 else ""
    lines.append(f"exchanges of a rank, each micro-batch{each}; {plan.micro_batches} a step")
    lines += [_line(c, plan) for c in found if c.phase != "optimizer"] or ["  none"]
    if chunks[0].graph.facts.mode == "train":
        lines.append("exchanges of a rank, once a step")
        lines += [_line(c, plan) for c in found if c.phase == "optimizer"] or ["  none"]
        lines.append("passes of a rank over its parameters, once a step")
        lines += [f"  {p.kind} of {p.numel} elements, {p.nbytes} bytes{_stages(p.stages, plan)}" for p in passes]
    return "\n".join(lines) + "\n"


def _line(c: Exchange, plan: Plan) -> str:
    where = "" if c.phase == "optimizer" else f" in {c.module}" if c.module else " outside layers"
    when = "" if c.phase == "optimizer" else f", {c.phase}"
    over = f"{c.kind} over {c.axis} {c.ranks} of {c.nbytes} bytes"
    return f"  {c.calls} {over}{where}{when} ({c.role}){_stages(c.stages, plan)}"


def _stages(stages: tuple[int, ...], plan: Plan) -> str:
    if plan.pp == 1:
        return ""
    if stages == tuple(range(plan.pp)):
        return ", every stage"
    return (", stage " if len(stages) == 1 else ", stages ") + ", ".join(map(str, stages))
