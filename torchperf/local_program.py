"""What one rank of a plan runs for one micro-batch, over the whole depth of the model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .annotate import works as annotated
from .fuse import fuse
from .graph.errors import TorchperfError
from .graph.fold import fold
from .graph.graph import Graph
from .graph.plan import Plan
from .graph.runtime import Runtime
from .partition.context_check import check as context_check
from .partition.context_check import own_attention
from .partition.context_parallel import context_parallel, local_sequence
from .partition.context_ulysses import check_heads
from .partition.expert_parallel import expert_parallel
from .partition.gradient_sums import put_off
from .partition.plan_file import plan_of
from .partition.stages import layers_of, split_layers
from .partition.tensor_parallel import tensor_parallel
from .partition.why import Indivisible, left_whole
from .rewrite import attention, optimizer, recompute
from .rewrite import precision as precisions
from .rewrite.low_precision import quantise
from .rewrite.low_precision_step import narrow_gathers, shared_casts


@dataclass(frozen=True, slots=True)
class How:
    """Everything but the plan that shapes a program."""

    precision: str = "bf16-mixed"
    optimizer: str = "adamw"
    attention: str = "auto"


@dataclass(frozen=True, slots=True)
class LocalProgram:
    """What one rank runs.

    graph    local shapes and collectives
    experts  names of the parameters of experts, split or left whole
    summed   names of the parameters whose gradients are summed over the tensor-parallel ranks once a step
    whole    large parameters that tensor parallelism leaves whole, because the ranks do not divide them
    """

    graph: Graph
    experts: frozenset[str] = frozenset()
    summed: frozenset[str] = frozenset()
    whole: tuple[Indivisible, ...] = ()


Bind = Callable[[int | None], Graph]  # a sequence length, None for the model's own -> the bound graph


def whole(graph: Graph, how: How, runtime: Runtime) -> Graph:
    """The program on a single device, in its precision and form of attention, before anything is repeated or fused."""
    return attention.apply(precisions.apply(graph, precisions.precision(how.precision)), _form(how, runtime))


def _form(how: How, runtime: Runtime) -> str:
    asked = runtime.attention if how.attention == "auto" and runtime.fused else how.attention
    return attention.form(asked, runtime.fused)


def local_program(bind: Bind, seq: int | None, plan: Plan, how: How, runtime: Runtime, arch: str = "") -> LocalProgram:
    """The program of one rank under a resolved plan. Raises TorchperfError.

    Order: sizes of the rank's tokens, precision, form of attention, tensor, expert and context parallelism, attention
    written out where it is unfused, low-precision products, recomputation (with its collectives), gradient
    accumulation, kernels.
    """
    graph = bind(seq if seq is None or plan.cp == 1 else _own_length(bind, seq, plan))
    to = precisions.precision(how.precision)
    training = runtime.training
    form, experts, summed = _form(how, runtime), frozenset[str](), frozenset[str]()
    left: tuple[Indivisible, ...] = ()
    unfused = form == "unfused"  # written out once heads are local: kernels over merged batch and heads do not split
    program = attention.apply(precisions.apply(graph, to), "written" if unfused else form)
    if plan.cp > 1:
        context_check(program)
    if plan.tp > 1:
        split = tensor_parallel(
            program, plan.tp, sequence=plan.sequence_parallel, plan=plan_of(graph, plan.tp_plan),
            regather=training.regather, norm_gradients=training.norm_gradients != "never",
            local_experts=plan.expert_tp < plan.tp,
        )  # fmt: skip
        program, experts, left = split.program, split.experts, left_whole(split.plan)
        if training.norm_gradients == "step":
            program, summed = put_off(program)
    mesh = plan.mesh
    if plan.ep > 1:
        found = expert_parallel(program, plan.ep, stride=plan.expert_tp, imbalance=plan.moe_imbalance)
        program, experts = found.program, found.parameters
    if plan.cp > 1:
        program = context_parallel(program, plan.cp, kind=plan.cp_kind, stride=mesh.stride("cp"))
    if unfused:
        if plan.cp > 1 and plan.cp_kind == "ring":
            raise TorchperfError(
                f"a ring of `--cp {plan.cp}` has no unfused attention",
                facts=[("runtime", runtime.name)],
                hint="`--attention flash`, or `--cp-kind ulysses`",
            )
        program = attention.apply(program, "unfused")
    if to.linear:
        program = narrow_gathers(quantise(program, to, arch or None, sharded=plan.zero_stage == 3), to)
    if plan.recompute.startswith("full:"):  # layers alike in all else differ there
        return LocalProgram(_repeated(program, plan, to, runtime, _stages(program, plan)), experts, summed, left)
    folded = fold(program)
    return LocalProgram(folded.unfold(_repeated(folded.graph, plan, to, runtime)), experts, summed, left)


def _own_length(bind: Bind, seq: int, plan: Plan) -> int:
    """Positions of one rank. Where they do not divide the error keeps to heads and positions that the model has."""
    try:
        return local_sequence(seq, plan.cp, plan.cp_kind)
    except TorchperfError:
        whole = bind(seq)
        for op, _ in attention.apply(whole, "flash").ops() if plan.cp_kind == "ulysses" else ():
            if own_attention(op) and op.phase == "forward":
                check_heads(op, plan.cp, seq, plan.tp)
        return local_sequence(seq, plan.cp, plan.cp_kind, longest=dict(whole.facts.limits).get("seq"))


def _repeated(
    program: Graph, plan: Plan, to: precisions.Precision, runtime: Runtime,
    stages: tuple[tuple[str, ...], ...] | None = None,
) -> Graph:  # fmt: skip
    """The program with what is done to each layer by itself: recomputation, gradient accumulation, kernels."""
    program = recompute.apply(program, plan.recompute, stages)
    if to.linear:
        shards = plan.dp_shard * plan.cp if plan.zero_stage == 3 and to.gather else 1
        program = shared_casts(program, plan.micro_batches, shards)
    if plan.zero_stage < 3 and program.facts.mode == "train":
        program = optimizer.accumulation(program, runtime.training, plan.micro_batches)
    return fuse(program, annotated(program), runtime.fused_outside) if runtime.fused else program


def _stages(graph: Graph, plan: Plan) -> tuple[tuple[str, ...], ...] | None:
    """The layers of each pipeline rank."""
    layers = layers_of(graph)
    if plan.pp == 1 or not layers:
        return None
    found: list[list[str]] = [[] for _ in range(plan.pp)]
    at = 0
    for c, size in enumerate(split_layers(len(layers), plan)):
        found[c % plan.pp] += layers[at : at + size]
        at += size
    return tuple(map(tuple, found))
