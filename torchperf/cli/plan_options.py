"""The options that say how a step is spread over devices; every one becomes a field of a Plan."""

from __future__ import annotations

from typing import Any

import click

from torchperf.graph.plan import CP_KINDS, OFFLOADS, REDUCE_DTYPES, SCHEDULES, Plan

from .options import Command, count, positive


def _parts(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[int, ...]:
    """`16,32,32,16` -> layers of each stage."""
    if value is None:
        return ()
    try:
        return tuple(int(part) for part in value.split(","))
    except ValueError:
        raise click.UsageError(f"`{param.opts[0]}` is `{value}`: give layers, such as `16,32`", ctx) from None


def _imbalance(ctx: click.Context, param: click.Parameter, value: str | None) -> float:
    return positive(ctx, param, value) or 1.0


def _ranks(flag: str, text: str, name: str | None = None) -> Any:
    args = (flag, name) if name else (flag,)
    return click.option(*args, metavar="N", callback=count, help=text)


_OPTIONS = (
    _ranks("--tp", "Tensor parallelism: devices that share each layer.  [default: 1]"),
    click.option(
        "--tp-plan", metavar="FILE|hf", default="", help="Where tensor parallelism splits: a TOML file, `hf` for the "
        "model's own plan.  [default: inferred from the program]",
    ),
    click.option("--sequence-parallel", is_flag=True, help="With --tp: split what lies between along the sequence."),
    _ranks("--pp", "Pipeline stages.  [default: 1]"),
    click.option(
        "--pp-split", metavar="N,N,...", callback=_parts, help="Layers of each stage, in order.  [default: even]"
    ),
    _ranks("--virtual-stages", "Chunks of layers a stage (interleaving).  [default: 1]"),
    click.option(
        "--schedule", type=click.Choice(SCHEDULES), help="Order of the micro-batches.  [default: 1f1b or interleaved]"
    ),
    _ranks("--dp", "Data parallelism: replicas, sharded or not.  [default: what --num-gpus leaves]"),
    _ranks("--dp-shard", "Of these, how many share one copy of the states; fewer than --dp is hybrid sharding."),
    click.option(
        "--zero", "zero_stage", type=click.Choice(["0", "1", "2", "3"]), help="What replicas share out: 1 optimizer "
        "states, 2 gradients too, 3 parameters too (FSDP).  [default: 3 with --dp-shard or an fsdp runtime, else 0]",
    ),
    click.option("--no-reshard", is_flag=True, help="ZeRO 3: keep gathered parameters from forward to backward."),
    click.option(
        "--reduce-dtype", type=click.Choice(REDUCE_DTYPES),
        help="Element type in which gradients are summed.  [default: fp32]",
    ),
    _ranks("--cp", "Context parallelism: devices that share a sequence.  [default: 1]"),
    click.option(
        "--cp-kind", type=click.Choice(CP_KINDS),
        help="Keys and values go round, or heads are exchanged.  [default: ring]",
    ),
    _ranks("--ep", "Expert parallelism: devices, out of dp x cp, that share the experts.  [default: 1]"),
    _ranks("--expert-tp", "Devices that share one expert: 1, or as --tp.  [default: --tp]"),
    click.option(
        "--moe-imbalance", metavar="F", callback=_imbalance,
        help="Rows of the most loaded experts' rank over the mean; for experts padded to a capacity, its factor."
    ),
    _ranks("--global-batch", "Samples of a step over all devices.  [default: --micro-batch x dp x pp]"),
    click.option(
        "--recompute", default="none", show_default=True, metavar="HOW", help="none, selective (attention core), "
        "selective-ops (a list of kept ops), full, full:N (the first N layers of a stage), or modules:A+B (layernorm, "
        "moe_act, mla_up_proj, mlp, moe, shared_experts, core_attn).",
    ),
    click.option(
        "--offload", type=click.Choice(OFFLOADS), default="none", show_default=True, help="What the host keeps."
    ),
)  # fmt: skip

FIELDS = (
    "tp", "tp_plan", "sequence_parallel", "pp", "pp_split", "virtual_stages", "schedule", "dp", "dp_shard",
    "zero_stage", "reduce_dtype", "cp", "cp_kind", "ep", "expert_tp", "moe_imbalance", "global_batch", "recompute",
    "offload",
)  # fmt: skip


def parallelism(command: Command) -> Command:
    """All of the options, in the order in which they are listed."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def plan_of(given: dict[str, Any], micro_batch: int | None) -> Plan:
    """Take the options out of `given` and make them a plan; what was not given stays open."""
    fields = {name: given.pop(name) for name in FIELDS}
    reshard = not given.pop("no_reshard")
    fields["zero_stage"] = None if fields["zero_stage"] is None else int(fields["zero_stage"])
    chosen = {name: value for name, value in fields.items() if value is not None}
    return Plan(**chosen, reshard=reshard, micro_batch=micro_batch or 0)
