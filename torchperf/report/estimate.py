"""Estimate -> the sections of its report, in the order in which people ask."""

from __future__ import annotations

from collections.abc import Sequence

from torchperf.graph.estimate import Estimate, Flops, Run
from torchperf.graph.plan import Plan

from . import memory, share, stages, units
from .confidence import error, of_metric, sentence
from .section import Section
from .suggestion import suggested

LISTED = 5  # assumptions, guesses and unpriced ops shown as text; JSON has all


def sections(e: Estimate, *, whole: bool = False) -> list[Section]:
    """Verdict, memory, time, utilisation, where the time goes, what to change, how far to trust it.

    whole: list every assumption, guess and unpriced op.
    """
    limit = None if whole else LISTED
    return [
        head(e),
        memory.verdict(e),
        memory.table(e),
        memory.bytes_per_parameter(e),
        stages.table(e),
        time(e),
        utilisation(e),
        share.by_kind(e),
        share.by_module(e),
        share.top_kernels(e),
        bullets("suggestions", suggested(e), None),
        bullets("assumptions", e.assumptions, limit, tight=True),
        bullets("guesses", e.guesses, limit, tight=True),
        unpriced(e, limit),
        Section("", lines=(f"sources: {', '.join(e.sources)}",) if e.sources else (), tight=not whole),
    ]


def head(e: Estimate) -> Section:
    """What was asked: model, device, sizes, precision and the rest of the plan."""
    sizes = ", ".join(f"{name} {units.count(size)}" for name, size in e.sizes)
    plan = (
        [e.precision, e.runtime]
        if e.mode == "forward"
        else [e.precision, e.optimizer, f"recompute {e.recompute}", e.runtime]
    )
    trained = "" if e.trainable_parameters == e.parameters else f", {units.count(e.trainable_parameters)} trained"
    what = "one training step" if e.mode == "train" else "one forward pass"
    return Section(
        "",
        lines=(
            f"{e.model} on {e.num_gpus} x {e.gpu}: {what}",
            ", ".join(part for part in (sizes, *plan) if part),
            *((line,) if (line := plan_line(e.plan, e.mode)) else ()),
            f"{units.count(e.parameters)} parameters{trained}",
        ),
    )


def plan_line(plan: Plan, mode: str) -> str:
    """How the step is spread over devices, in words; "" on one device with one micro-batch."""
    parts = []
    if plan.tp > 1:
        along = " with sequence parallel" if plan.sequence_parallel else ""
        parts.append(f"tp {plan.tp}{along}" + (", experts whole" if plan.expert_tp < plan.tp else ""))
    if plan.cp > 1:
        parts.append(f"cp {plan.cp} ({plan.cp_kind})")
    if plan.pp > 1:
        virtual = f" x {plan.virtual_stages} chunks" if plan.virtual_stages > 1 else ""
        parts.append(f"pp {plan.pp}{virtual}, {plan.schedule}")
    if plan.ep > 1:
        parts.append(f"ep {plan.ep}")
    zero = f"ZeRO {plan.zero_stage}" if plan.zero_stage else ""
    if plan.dp > 1:
        shared = f", {plan.dp_shard} to a copy of the states" if plan.zero_stage and plan.replicate > 1 else ""
        parts.append(f"dp {plan.dp}" + (f" with {zero}{shared}" if zero else ""))
    elif zero and (plan.cp > 1 or plan.expert_tp < plan.tp or plan.offload != "none"):
        parts.append(zero)
    if mode == "train" and (plan.dp > 1 or plan.micro_batches > 1):
        runs = "1 micro-batch" if plan.micro_batches == 1 else f"{plan.micro_batches} micro-batches"
        parts.append(f"global batch {units.count(plan.global_batch)} in {runs} a replica")
    if plan.offload != "none":
        parts.append(f"offload {plan.offload}")
    return ", ".join(parts)


def time(e: Estimate) -> Section:
    """Step time by phase, the bound beside it, throughput, FLOPs."""
    phases = ", ".join(f"{name} {units.seconds(s)}" for name, s in e.phase_time_s if s)
    rows = [("step time" if e.mode == "train" else "forward time", units.seconds(e.step_time_s), phases)]
    if e.roofline_time_s:
        times = e.step_time_s / e.roofline_time_s
        rows.append(
            (
                "roofline bound",
                units.seconds(e.roofline_time_s),
                f"at peak FLOP/s and bandwidth; the estimate is {times:.2f} x",
            )
        )
    told = of_metric(e.confidence, "step_time" if e.mode == "train" else "forward_time")
    if told is not None:
        rows.append(("validated error", error(told), sentence(told)))
    for c in e.communication:
        rows.append((f"{c.axis} communication", units.seconds(c.exposed), f"exposed; {units.seconds(c.hidden)} hidden"))
    if e.slowed_s:
        rows.append(("compute slowed", units.seconds(e.slowed_s), "beside hidden communication; part of the phases"))
    rows.append(("host time", units.seconds(e.host_time_s), _host(e)))
    if e.tokens_per_step:
        over = f"{units.rate(e.tokens_per_s * e.num_gpus)} over {e.num_gpus} GPUs; " if e.num_gpus > 1 else ""
        rows.append(
            (
                "tokens/s per GPU",
                units.rate(e.tokens_per_s),
                f"{over}{units.count(e.tokens_per_step)} tokens a step",
            )
        )
    rows.append(("samples/s per GPU", units.rate(e.samples_per_s), ""))
    if e.run is not None:
        rows.append(("whole run", f"{e.run.days:,.1f} days", _run(e.run)))
    causal = ", causal" if e.flops_noncausal != e.flops else ""
    rows.append((f"FLOPs{causal}", units.si(e.flops.model, "FLOP"), _phases(e.flops)))
    if causal:
        noncausal = units.si(e.flops_noncausal.model, "FLOP")
        rows.append(("FLOPs, non-causal", noncausal, _phases(e.flops_noncausal)))
    return Section("time", ("", ""), tuple(rows), right=(1,), wrapped=(2,))


def _run(run: Run) -> str:
    """GPU-hours, dollars, steps, and the goodput that they hold for."""
    price = run.price_per_gpu_hour
    dollars = "" if run.dollars is None else f"${run.dollars:,.0f} at ${price:,.2f} per GPU-hour; "
    lost = "; no time lost to restarts: `--goodput 0.9` counts such losses" if run.goodput == 1.0 else ""
    return (
        f"{units.rate(run.gpu_hours)} GPU-hours; {dollars}{units.count(run.steps)} steps, "
        f"goodput {units.percent(run.goodput)}{lost}"
    )


def _host(e: Estimate) -> str:
    idle = 1 - e.device_time_s / e.step_time_s if e.step_time_s else 0.0
    if idle > 0.001:
        return f"to launch the ops; the device is idle {units.percent(idle)} of the step"
    return "to launch the ops, hidden behind the device"


def _phases(flops: Flops) -> str:
    named = (
        ("forward", flops.forward),
        ("backward", flops.backward),
        ("recompute, not in the sum", flops.recompute),
    )
    return ", ".join(f"{name} {units.si(n, 'FLOP')}" for name, n in named if n)


def utilisation(e: Estimate) -> Section:
    """MFU and HFU, each in its named convention, over the dense peak."""
    rows = tuple(
        (name, units.percent(u.value), units.si(u.value * e.peak_flops_per_s, "FLOP/s"),
         units.si(u.flops_per_token, "FLOP") if u.flops_per_token else "", u.convention)
        for name, group in (("MFU", e.mfu), ("HFU", e.hfu)) for u in group
    )  # fmt: skip
    headers = ("of peak", "achieved", "per token", "convention")
    lines = (f"the peak is {units.si(e.peak_flops_per_s, 'FLOP/s')}, dense",)
    return Section("utilisation", headers, rows, right=(1, 2, 3), wrapped=(4,), lines=lines)


def bullets(title: str, items: Sequence[str], limit: int | None, *, tight: bool = False) -> Section:
    """A list of sentences, cut to `limit` with a last line that tells how many more there are."""
    shown = tuple(items) if limit is None or len(items) <= limit else tuple(items[:limit])
    more = (f"and {len(items) - len(shown)} more: `--json -` lists all",) if len(shown) < len(items) else ()
    return Section(title, items=(*shown, *more), tight=tight)


def unpriced(e: Estimate, limit: int | None) -> Section:
    """Ops without a rule: their bytes are priced, their FLOPs are not known."""
    ops = sorted(e.unpriced, key=lambda u: -u.nbytes)
    rows = tuple(
        (u.op, units.count(u.calls), units.size(u.nbytes), units.percent(u.share_of_bytes)) for u in ops[:limit]
    )
    hidden = len(ops) - len(rows)
    lines = (f"and {hidden} more: `--json -` lists all",) if hidden else ()
    return Section(
        "unpriced ops", ("calls", "bytes", "of all bytes"), rows, right=(1, 2, 3), flexible=(0,), lines=lines
    )
