"""The optimizer step, priced from what it does per parameter."""

from __future__ import annotations

from dataclasses import replace

from torchperf.graph.op import Op
from torchperf.graph.work import Work

from .registry import aten, rule
from .traffic import dtype_of, listed, read, written

FUSED = {"_fused_adam": 15, "_fused_adamw": 15, "_fused_adagrad": 7, "_fused_sgd": 5}  # FLOPs per parameter
STATES = ("self", "exp_avgs", "exp_avg_sqs", "max_exp_avg_sqs", "state_sums", "momentum_buffer_list")


@rule("torchperf.optimizer")
def optimizer_step(op: Op) -> Work:
    """One step over `numel` parameters

    flops    flops_per_parameter numel
    read     read_bytes_per_parameter numel
    write    write_bytes_per_parameter numel      (attributes of the op)
    """
    numel = op.attr("numel", 0)
    flops = round(op.attr("flops_per_parameter", 0) * numel)
    return Work(
        "optimizer", "vector", dtype_of(op), flops, flops, flops,
        round(op.attr("read_bytes_per_parameter", 0) * numel),
        round(op.attr("write_bytes_per_parameter", 0) * numel),
        (("numel", numel),),
    )  # fmt: skip


@rule("torchperf.accumulate")
def accumulate(op: Op) -> Work:
    """Gradients added to those of earlier micro-batches: attributes as of the optimizer's step

    flops    flops_per_parameter numel
    read     read_bytes_per_parameter numel
    write    write_bytes_per_parameter numel
    """
    return replace(optimizer_step(op), kind="pointwise")


@rule(*aten(FUSED))
def fused_optimizer(op: Op) -> Work:
    """torch's own one-kernel step over lists of parameters, gradients and states, in place

    flops    FUSED[name] per parameter        read every list        write parameters and states
    """
    numel = sum(value.numel for value in listed(op, "self"))
    states = sum(value.nbytes for name in STATES for value in listed(op, name))
    flops = FUSED[op.name.split(".")[1].removesuffix("_")] * numel
    dims = (("numel", numel),)
    return Work("optimizer", "vector", dtype_of(op), flops, flops, flops, read(op), states or written(op), dims)
