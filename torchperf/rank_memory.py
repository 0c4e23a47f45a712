"""Bytes on one pipeline rank at its worst moment, and what they are."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from .graph.dtype import bits, nbytes
from .graph.estimate import Memory
from .graph.graph import Parameter
from .graph.plan import Plan
from .graph.runtime import Runtime, Training
from .partition.replicas import groups
from .rewrite import optimizer
from .rewrite.precision import Precision
from .step import Step, worst
from .step_ops import state_ranks


@dataclass(frozen=True, slots=True)
class _States:
    """Bytes that a rank keeps for the whole step; `rows` are bytes of a parameter, before sharding.

    flat   bytes of the buffers that the runtime makes once a step, to reduce gradients and to step
    """

    parameters: float
    gradients: float
    optimizer: float
    rows: tuple[tuple[str, float], ...]
    flat: float = 0.0


def most_loaded(step: Step, to: Precision, optimizer_name: str, runtime: Runtime, usable: float) -> Memory:
    """Memory of the rank that needs the most; of ranks alike the first, which holds the most micro-batches."""
    seen: set[tuple[object, ...]] = set()
    found: list[Memory] = []
    for rank, own in enumerate(step.rank_of):
        like = (*(id(step.costs[c]) for c in own), sum(p.numel for p in step.ranks[rank].parameters))
        if like not in seen:
            seen.add(like)
            found.append(rank_memory(step, rank, to, optimizer_name, runtime, usable))
    return max(found, key=lambda m: m.device)


def stage_memory(
    step: Step, to: Precision, optimizer_name: str, runtime: Runtime, usable: float
) -> tuple[Memory, ...]:  # fmt: skip
    """Memory of every pipeline rank, in order."""
    return tuple(rank_memory(step, rank, to, optimizer_name, runtime, usable) for rank in range(len(step.rank_of)))


def rank_memory(step: Step, rank: int, to: Precision, optimizer_name: str, runtime: Runtime, usable: float) -> Memory:
    """Memory of one pipeline rank. States once; activations of every micro-batch under way; what one more needs.

    The flat buffers of the step are part of the reserve: each is longer than the blocks that backward gives back, so
    the allocator asks the driver for it, and keeps both. Source: PyTorch docs, CUDA semantics, memory management
    """
    facts, plan = step.local.graph.facts, step.plan
    states = _states(step, rank, to, optimizer_name, runtime)
    own = step.rank_of[rank]
    costs = [step.costs[c] for c in own]
    moment = worst(step, rank)
    top = costs[moment.running].peak
    activations = top.activations + sum(n * c.saved.activations for n, c in zip(moment.waiting, costs, strict=True))
    activations += sum(n * c.weight for n, c in zip(moment.delayed, costs, strict=True))
    loss = top.logits_loss + sum(n * c.saved.logits_loss for n, c in zip(moment.waiting, costs, strict=True))
    buffers = sum(nbytes(b.numel, b.dtype) for b in facts.buffers)
    near, host = _offloaded(states, plan, sum(len(step.chunks[c].layers) for c in own))
    fixed = round(near.parameters + buffers + near.gradients + near.optimizer)
    buckets = _buckets(states.gradients, runtime.training, plan) if facts.mode == "train" else 0
    peak = fixed + buckets + activations + loss + top.temporary + top.gathered
    reserve = runtime.reserve.value + runtime.allocator_fraction.value * peak + states.flat
    return Memory(
        parameters=round(near.parameters), buffers=buffers, gradients=round(near.gradients),
        optimizer=round(near.optimizer), activations=activations, logits_loss=loss, temporary=top.temporary,
        gathered=top.gathered, reserve=round(reserve),
        peak=peak, usable=int(usable), peak_at=_where(top.module, top.phase, rank, plan.pp),
        bytes_per_parameter=states.rows, host=round(host), in_flight=sum(moment.held), delayed=sum(moment.delayed),
        buckets=buckets, context=round(runtime.reserve.value),
    )  # fmt: skip


def _buckets(gradients: float, training: Training, plan: Plan) -> int:
    """Bytes of a rank's buckets: as long as its gradients, where those do not lie in them.

    Source: PyTorch docs, DistributedDataParallel, `gradient_as_bucket_view`: without it (the default) gradients and
    buckets are both there, as large as all gradients [pytorch_ddp]
    """
    copied = training.bucket_copies and plan.zero_stage < 2 and groups(plan).ranks > 1
    return round(gradients) if copied else 0


def _offloaded(states: _States, plan: Plan, layers: int) -> tuple[_States, float]:
    """What is on the device, and the bytes that the host keeps.

    Gradients follow the optimizer's states where they are sharded, reduced and sent down bucket by bucket: ZeRO 2 and 3
    of DeepSpeed, FSDP's CPU offload. Of offloaded parameters the shards of the layer at work and of the next are here.

    source   PyTorch docs, FSDP: `CPUOffload` (gradients go with the parameters) [zhao2023fsdp]; DeepSpeed ZeRO-Offload
    """
    if plan.offload == "none":
        return states, 0.0
    parameters, host = states.parameters, states.optimizer
    if plan.offload == "params+optimizer":
        parameters, host = parameters * min(1.0, 2 / max(1, layers)), host + parameters
    if plan.zero_stage < 2:
        return _States(parameters, states.gradients, 0.0, states.rows, states.flat), host
    return _States(parameters, 0.0, 0.0, states.rows, states.flat), host + states.gradients


def _where(module: str, phase: str, rank: int, pp: int) -> str:
    where = f"{module or '(model)'}, {phase}" if phase else ""
    return f"stage {rank}: {where}" if pp > 1 else where


def _states(step: Step, rank: int, to: Precision, optimizer_name: str, runtime: Runtime) -> _States:
    """Weights, gradients and the optimizer's states of a rank, by the stage of ZeRO."""
    plan, train = step.plan, step.local.graph.facts.mode == "train"
    parameters = step.ranks[rank].parameters
    training = runtime.training
    masters = train and training.parameters == "shard" and plan.zero_stage == 3 and to.master
    weights = _weights(step, parameters, masters)
    if not train:
        return _States(weights, 0.0, 0.0, ((f"weights {to.compute}", bits(to.compute) / 8),))
    gradients = states = 0.0
    flat = training.step_buffer.value if training.step_buffer else 0.0
    rows: tuple[tuple[str, float], ...] = ()
    for experts in (False, True):
        own = [p for p in parameters if (p.names[0] in step.local.experts) == experts]
        shard = groups(plan, experts).shard.ranks
        kept = optimizer.state(own, optimizer_name, to)
        own_rows = [row for row in kept.rows if not (masters and row[0].startswith("master"))]
        spare = 4 * sum(p.numel for p in own if p.trained) if masters else 0
        gradients += sum(_gradient(p, training) for p in own) / (shard if plan.zero_stage >= 2 else 1)
        if training.step_copies:
            flat += training.step_copies.value * sum(p.numel for p in own if p.trained) / state_ranks(plan, experts)
        states += (kept.nbytes - spare) / state_ranks(plan, experts)
        if own:
            what = "weights fp32" if masters else f"weights {to.compute}"
            width = training.gradient_bytes(bits(to.compute) / 8)
            grad = f"gradients {_gradient_dtype(training, to)}"
            rows = rows or ((what, 4.0 if masters else bits(to.compute) / 8), (grad, width), *own_rows)
    return _States(weights, gradients, states, rows, flat)


def _gradient_dtype(training: Training, to: Precision) -> str:
    return {"parameter": to.compute, "fp32": "fp32", "both": f"fp32 and {to.compute}"}[training.gradients]


def _weights(step: Step, parameters: Iterable[Parameter], masters: bool) -> float:
    """Bytes of a rank's weights."""
    total = 0.0
    for p in parameters:
        size = 4 * p.numel if masters and p.trained else nbytes(p.numel, p.dtype)
        shard = groups(step.plan, p.names[0] in step.local.experts).shard.ranks
        total += size / (shard if step.plan.zero_stage == 3 else 1)
    return total


def _gradient(p: Parameter, training: Training) -> float:
    return training.gradient_bytes(nbytes(p.numel, p.dtype) / p.numel) * p.numel if p.trained and p.numel else 0.0
