"""What a pipeline rank runs beside its micro-batches, as ops: transfers between stages, and everything once a step."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from .graph.dtype import bits
from .graph.graph import Parameter
from .graph.op import Op
from .graph.plan import Plan
from .graph.runtime import Training
from .graph.tensor import Value
from .local_program import LocalProgram
from .partition.fully_sharded import Group
from .partition.replicas import gradient_sync, groups
from .rewrite import optimizer
from .rewrite.precision import Precision


@dataclass(frozen=True, slots=True)
class Once:
    """Ops of one rank once a step.

    reduce, gather   collectives of data parallelism: gradients, updated weights
    model_wide       collectives over the ranks that split the model
    passes           of the optimizer, over parameters and states
    """

    reduce: tuple[Op, ...]
    gather: tuple[Op, ...]
    model_wide: tuple[Op, ...]
    passes: tuple[Op, ...]


def once_a_step(
    plan: Plan, parameters: tuple[Parameter, ...], local: LocalProgram, training: Training, optimizer_name: str,
    to: Precision, copies: Group | None = None,
) -> Once:  # fmt: skip
    """What a rank with these parameters runs once a step; `copies`: see `gradient_sync`."""
    sync = gradient_sync(parameters, plan, local.experts, round(training.bucket.value), to.compute, copies)
    masters = not (training.parameters == "shard" and plan.zero_stage == 3)
    step = optimizer.passes(
        parameters, optimizer_name, to, training, masters=masters,
        shards=lambda p: state_ranks(plan, p.names[0] in local.experts),
    )  # fmt: skip
    late = sum(p.numel for p in parameters if p.trained and p.names[0] in local.summed)
    wide = _model_wide(plan, parameters, training)
    if late:
        size = late * bits("fp32" if training.wide else to.compute) // 8
        wide = [_transfer("all_reduce", size, size, plan.tp, 1, "tp", "gradients of what every rank holds"), *wide]
    return Once(sync.reduce.ops, sync.gather.ops, tuple(wide), step)


def sends(plan: Plan, training: Training, nbytes: int, phase: str = "forward") -> tuple[Op, ...]:
    """An activation, or its gradient, passed on between stages; where the runtime does so in slices, gathered then."""
    if plan.pp == 1 or not nbytes:
        return ()
    sliced = training.scatter_gather and plan.tp > 1 and not plan.sequence_parallel
    part = nbytes // plan.tp if sliced else nbytes
    role = "to the stage before" if phase == "backward" else "to the next stage"
    found = (_transfer("send_recv", part, part, 2, plan.mesh.stride("pp"), "pp", role, phase),)
    if not sliced:
        return found
    return (*found, _transfer("all_gather", part, nbytes, plan.tp, 1, "tp", "from another stage", phase))


def state_ranks(plan: Plan, experts: bool = False) -> int:
    """Ranks that share the optimizer states of a parameter."""
    return groups(plan, experts).shard.ranks if plan.zero_stage else 1


def _model_wide(plan: Plan, parameters: Iterable[Parameter], training: Training) -> list[Op]:
    """The sum of gradient norms over the ranks that hold other gradients; tied weights at both ends of a pipeline.

    With ZeRO each rank has the norm of its shard: Megatron-LM sums it over the distributed optimizer's ranks
    (`get_grad_stats_parallel_group`), DTensor over the mesh of the shards (`clip_grad_norm_`).
    """
    found = []
    shards, mesh = state_ranks(plan), plan.mesh
    axes = [axis for axis, n in (("tp", plan.tp), ("dp", shards), ("pp", plan.pp)) if n > 1]
    if "norm" in training.passes and axes:
        stride = mesh.stride("pp") if axes == ["pp"] else 1
        found.append(_transfer("all_reduce", 8, 8, plan.tp * shards * plan.pp, stride, "+".join(axes), "norm"))
    tied = [p for p in parameters if p.trained and len(p.names) > 1]
    if plan.pp > 1 and tied and plan.schedule != "dualpipe":  # there one rank has both ends
        nbytes = sum(p.numel for p in tied) * bits(plan.reduce_dtype) // 8
        found.append(
            _transfer("all_reduce", nbytes, nbytes, 2, mesh.stride("pp") * (plan.pp - 1), "pp", "tied weights")
        )
    return found


def _transfer(
    kind: str, before: int, after: int, ranks: int, stride: int, axis: str, role: str, phase: str = "optimizer"
) -> Op:
    source, target = Value(0, "u8", (before,), (1,)), Value(1, "u8", (after,), (1,))
    attrs = (("axis", axis), ("ranks", ranks), ("stride", stride), ("role", role))
    return Op(f"torchperf.{kind}", phase, "", ("self",), (source,), (target,), attrs)
