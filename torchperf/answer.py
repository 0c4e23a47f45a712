"""Priced step -> Estimate: verdict, memory table, shares of time, what was assumed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from .annotate import works as annotated
from .assumptions import assumptions
from .graph.estimate import Communication, Estimate, Flops, Share, Unpriced
from .graph.graph import Graph
from .graph.op import Op
from .graph.plan import Plan
from .graph.price import Price
from .graph.runtime import Runtime
from .graph.system import Accelerator, System
from .graph.work import Work
from .price.roofline import roofline
from .rank_memory import stage_memory
from .rewrite import precision
from .schedule.pipeline import step_time
from .step import Priced, Step
from .step_ends import RankCost
from .utilisation import conventions, flops_of

TIGHT = 0.05
MODEL_PHASES = ("forward", "backward", "recompute")


def unpriced_ops(rows: Sequence[Priced]) -> tuple[Unpriced, ...]:
    """Operators that no rule covers, with their calls and bytes."""
    total, found = 0.0, dict[str, list[float]]()
    for count, op, work, _ in rows:
        total += count * work.nbytes
        if not work.known:
            entry = found.setdefault(op.name, [0.0, 0.0])
            entry[0] += count
            entry[1] += count * work.nbytes
    return tuple(Unpriced(op, round(n), round(size), size / max(total, 1)) for op, (n, size) in found.items())


@dataclass(slots=True)
class _Tally:
    """Sums over the program's kernels under one key."""

    seconds: float = 0.0
    calls: float = 0.0
    flops: float = 0.0
    nbytes: float = 0.0
    bounds: dict[str, float] | None = None

    def add(self, count: float, work: Work, price: Price) -> None:
        self.seconds += count * price.seconds
        self.calls += count
        self.flops += count * work.flops
        self.nbytes += count * work.nbytes
        self.bounds = self.bounds or {}
        self.bounds[price.bound] = self.bounds.get(price.bound, 0.0) + count * price.seconds


def _shares(rows: Sequence[Priced], key: Callable[[Op, Work, Price], str]) -> tuple[Share, ...]:
    tallies: dict[str, _Tally] = {}
    for count, op, work, price in rows:
        if price.seconds > 0.0:
            tallies.setdefault(key(op, work, price), _Tally()).add(count, work, price)
    ranked = sorted(tallies.items(), key=lambda item: -item[1].seconds)
    return tuple(
        Share(
            name, t.seconds, round(t.calls), round(t.flops), round(t.nbytes),
            max(t.bounds or {"": 0.0}, key=(t.bounds or {}).__getitem__),
        )
        for name, t in ranked
    )  # fmt: skip


def short_module(path: str) -> str:
    """A module's path cut below the layer: `model.layers.*.mlp.up_proj` -> `model.layers.*.mlp`."""
    parts = path.split(".")
    cut = parts.index("*") + 2 if "*" in parts else 2
    return ".".join(parts[:cut]) or "(model)"


def kernel_name(op: Op) -> str:
    """The op's name; of a fused kernel the first ops in it."""
    if not op.parts:
        return op.name.removesuffix(".default")
    names = list(dict.fromkeys(part.name.split(".")[1] for part in op.parts))
    return f"fused({', '.join(names[:4])}{', ...' if len(names) > 4 else ''})"


def _top(rows: Sequence[Priced], number: int = 10) -> tuple[Share, ...]:
    ranked = sorted(rows, key=lambda r: -r[0] * r[3].seconds)[:number]
    return tuple(
        Share(
            f"{kernel_name(op)} {op.module}".strip(), count * price.seconds, round(count), round(count * work.flops),
            round(count * work.nbytes), price.bound, op.phase, " ".join(f"{k}={v}" for k, v in work.dims),
        )
        for count, op, work, price in ranked
        if count * price.seconds > 0
    )  # fmt: skip


def verdict(margin: float) -> str:
    """`fits`; `tight` under 5 % of usable capacity; `does not fit`."""
    return "does not fit" if margin < 0 else "tight" if margin < TIGHT else "fits"


@dataclass(frozen=True, slots=True)
class Setting:
    """How a step was run: what the user chose, resolved."""

    system: System
    runtime: Runtime
    num_gpus: int
    precision: str
    optimizer: str
    plan: Plan
    power_cap: float | None = None

    @property
    def device(self) -> Accelerator:
        return self.system.accelerator


def answer(graph: Graph, whole: Graph, step: Step, core: int, setting: Setting) -> Estimate:
    """The Estimate of a captured `graph`, bound at the whole sequence, whose rank runs `step`.

    whole   the program before it was split over devices: MFU counts its FLOPs
    core    attention's non-causal FLOPs of the whole
    """
    facts, device, runtime, plan = graph.facts, setting.device, setting.runtime, setting.plan
    to, rows = precision.precision(setting.precision), step.rows
    peak_flops = device.peak_flops_per_s(device.matmul_engine(to.compute), to.compute)
    stages = stage_memory(step, to, setting.optimizer, runtime, device.memory.usable.value)
    used = max(stages, key=lambda m: m.device)
    sample = (graph.size("batch") or 1) * (graph.size("seq") or 1)
    tokens = sample * plan.micro_batches * plan.dp
    rate = tokens / (step.seconds * setting.num_gpus) if step.seconds else 0.0
    flops, noncausal = _flops(rows, lambda w: w.flops), _flops(rows, lambda w: w.flops_noncausal)
    mfu, hfu = conventions(whole, _of_the_whole(whole, flops, plan), core, sample, rate, peak_flops)
    launches = sum(count for count, _, _, price in rows if price.seconds > 0)
    return Estimate(
        model=facts.model,
        mode=facts.mode,
        gpu=device.name,
        num_gpus=setting.num_gpus,
        sizes=graph.bound or (),
        precision=setting.precision,
        optimizer=setting.optimizer if facts.mode == "train" else "none",
        recompute=plan.recompute,
        runtime=runtime.name,
        parameters=sum(p.numel for p in facts.parameters),
        trainable_parameters=sum(p.numel for p in facts.parameters if p.trainable),
        verdict=verdict(used.margin),
        memory=used,
        step_time_s=step.seconds,
        device_time_s=sum(count * price.seconds for count, _, _, price in rows),
        host_time_s=launches * runtime.launch.value,
        phase_time_s=phases(step),
        roofline_time_s=sum(count * roofline(work, device) for count, _, work, _ in rows),
        tokens_per_step=tokens,
        tokens_per_s=rate,
        samples_per_s=rate / (graph.size("seq") or 1),
        flops=flops,
        flops_noncausal=noncausal,
        peak_flops_per_s=peak_flops,
        mfu=mfu,
        hfu=hfu,
        by_kind=_shares(rows, lambda op, work, price: work.kind),
        by_module=_shares(rows, lambda op, work, price: short_module(op.module)),
        by_bound=_shares(rows, lambda op, work, price: price.bound),
        top_kernels=_top(rows),
        unpriced=unpriced_ops(rows),
        guesses=facts.guesses,
        assumptions=assumptions(graph, step, setting.system, runtime, setting.power_cap, launches),
        sources=tuple(sorted({s for *_, price in rows for t in price.terms for s in t.sources})),
        plan=plan,
        bubble_s=max(step.seconds - sum(step.busy) / len(step.busy), 0.0),
        communication=communication(step),
        slowed_s=slowed(step),
        system=f"{setting.system.name}, {setting.system.num_accelerators} a node",
        stages=stages if plan.pp > 1 else (),
    )


def _of_the_whole(whole: Graph, flops: Flops, plan: Plan) -> Flops:
    """FLOPs of one micro-batch of the model before it was split; what only a rank recomputes is taken from `flops`."""
    counted = flops_of(whole, annotated(whole), lambda w: w.flops)
    if counted.recompute:
        return counted
    again = flops.recompute * plan.tp * plan.cp * plan.pp / plan.micro_batches
    return Flops(counted.forward, counted.backward, round(again))


def _flops(rows: Sequence[Priced], of: Callable[[Work], int]) -> Flops:
    """FLOPs of the matrix engine by phase, on one device."""
    sums = dict.fromkeys((*MODEL_PHASES, "optimizer"), 0.0)
    for count, op, work, _ in rows:
        if work.engine == "matrix":
            sums[op.phase] += count * of(work)
    return Flops(*(round(sums[phase]) for phase in MODEL_PHASES))


def phases(step: Step) -> tuple[tuple[str, float], ...]:
    """Seconds by phase on the average device; they sum to the step."""
    found: dict[str, float] = {}
    share = step.plan.micro_batches / step.plan.pp
    for chunk in step.costs:
        for phase, spent in chunk.spent.items():
            found[phase] = found.get(phase, 0.0) + share * spent.elapsed
    ranks = step.ranks
    found["optimizer"] = sum(r.optimizer for r in ranks) / len(ranks)
    found["gradient and weight exchange"] = sum(r.exposed + r.head for r in ranks) / len(ranks)
    found["compute slowed by the exchange"] = sum(r.slowed for r in ranks) / len(ranks)
    found["offload"] = sum(r.offload for r in ranks) / len(ranks)
    found["host, a layer and pass"] = host_stalls(step)
    found["waiting in the pipeline"] = step.seconds - sum(found.values()) if step.plan.pp > 1 else 0.0
    return tuple((name, seconds) for name, seconds in found.items() if seconds > 0.0)


def host_stalls(step: Step) -> float:
    """Seconds of a step on the average device that the host adds to each layer, once forward and once backward."""
    stall = step.runtime.training.layer_overhead
    if stall is None:
        return 0.0
    return 2 * stall.value * sum(len(c.layers) for c in step.chunks) * step.plan.micro_batches / step.plan.pp


def communication(step: Step) -> tuple[Communication, ...]:
    """What each axis exposes and hides, on the average device, together the seconds of its collectives.

    Of transfers between stages: what they add to the step, and the rest. The exchange of gradients and weights is
    shared out by the time of the collectives on each axis.
    """
    exposed: dict[str, float] = {}
    hidden: dict[str, float] = {}
    share = step.plan.micro_batches / step.plan.pp
    for chunk in step.costs:
        for spent in chunk.spent.values():
            for total, own in ((exposed, spent.exposed), (hidden, spent.hidden)):
                for axis, seconds in own.items():
                    total[axis] = total.get(axis, 0.0) + share * seconds
    for rank in step.ranks:
        for axis, part in _exchange_shares(rank).items():
            exposed[axis] = exposed.get(axis, 0.0) + part * (rank.exposed + rank.head) / len(step.ranks)
            hidden[axis] = hidden.get(axis, 0.0) + part * rank.hidden / len(step.ranks)
        for call in rank.calls:
            if call.when == "model":
                exposed[call.axis] = exposed.get(call.axis, 0.0) + (call.end - call.start) / len(step.ranks)
    if step.plan.pp > 1:
        added, sent = transfers(step)
        exposed["pp"] = exposed.get("pp", 0.0) + added
        hidden["pp"] = hidden.get("pp", 0.0) + max(sent - added, 0.0)
    axes = {axis: (exposed.get(axis, 0.0), hidden.get(axis, 0.0)) for axis in {**exposed, **hidden}}
    return tuple(Communication(axis, *axes[axis]) for axis in sorted(axes) if any(axes[axis]))


def _exchange_shares(rank: RankCost) -> dict[str, float]:
    """Axis -> its share of the time of the collectives that join replicas."""
    found: dict[str, float] = {}
    for op, _, price in rank.ops:
        if op.attr("role") in ("gradient", "weight"):
            axis = str(op.attr("axis"))
            found[axis] = found.get(axis, 0.0) + price.seconds
    whole = sum(found.values())
    return {axis: seconds / whole for axis, seconds in found.items()} if whole else {}


def transfers(step: Step) -> tuple[float, float]:
    """Seconds by which transfers between stages lengthen the step, and those that the average rank sends in it."""
    pipeline, seconds = step.pipeline, 0.0
    for own, stages in zip(step.rank_of, pipeline.stages, strict=True):
        for c, stage in zip(own, stages, strict=True):
            ways = bool(step.chunks[c].sends) + bool(step.chunks[c].returns)
            seconds += pipeline.per_chunk * ways * stage.send
    free = replace(pipeline, stages=tuple(tuple(replace(s, send=0.0) for s in own) for own in pipeline.stages))
    return max(step.seconds - step_time(free).seconds, 0.0), seconds / pipeline.ranks


def slowed(step: Step) -> float:
    """Seconds that compute loses beside hidden collectives, on the average device."""
    inside = sum(spent.slowed for chunk in step.costs for spent in chunk.spent.values())
    return (inside * step.plan.micro_batches + sum(rank.slowed for rank in step.ranks)) / step.plan.pp
