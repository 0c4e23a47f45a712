"""A priced step and its answer -> how step time, memory and utilisation come about."""

from __future__ import annotations

from .answer import MODEL_PHASES, host_stalls
from .explanation_constants import constants
from .explanation_kernels import Row, kernels
from .explanation_memory import memory
from .graph.estimate import Estimate, Mfu
from .graph.explanation import Explanation, Line, filled
from .graph.system import SAME_RATE
from .rewrite.precision import precision
from .schedule.streams import Spent
from .step import Step
from .utilisation import CAUSAL, NONCAUSAL, PALM

REDUCED = ("gradient", "weight")  # roles of the collectives that join replicas


def explain(e: Estimate, step: Step) -> Explanation:
    """Step time, memory and each MFU; `e` is the answer about `step`."""
    lines = (step_time(e, step), memory(e.memory, step), *(_mfu(one, e, step) for one in e.mfu))
    return Explanation(lines, constants(lines, step.system, step.runtime))


def step_time(e: Estimate, step: Step) -> Line:
    """The step on the average device: its phases, what joins the replicas, and what the pipeline waits."""
    share = step.plan.micro_batches / step.plan.pp
    spent: dict[str, Spent] = {}
    for cost in step.costs:
        for phase, one in cost.spent.items():
            spent.setdefault(phase, Spent()).add(one)
    rows = _rows(step)
    lines = [_phase(phase, spent[phase], share, rows[phase], step) for phase in MODEL_PHASES if phase in spent]
    lines += [*_ends(step), *_pipeline(e, step)]
    name = "step time" if e.mode == "train" else "forward time"
    return filled(name, e.step_time_s, "s", tuple(line for line in lines if line.value), "rounding")


def _rows(step: Step) -> dict[str, list[Row]]:
    """Every kernel of the micro-batches by phase, how often on the average device."""
    share = step.plan.micro_batches / step.plan.pp
    found: dict[str, list[Row]] = {phase: [] for phase in MODEL_PHASES}
    for cost in step.costs:
        for count, block, works, prices in zip(
            cost.graph.counts, cost.graph.blocks, cost.works, cost.prices, strict=True
        ):
            own = zip(block.ops, works, prices, strict=True)
            found[block.phase] += [(count * share, op, work, price) for op, work, price in own]
    return found


def _phase(name: str, spent: Spent, share: float, rows: list[Row], step: Step) -> Line:
    """One phase of all micro-batches: kernels, collectives that compute waits for, and what holds it up."""
    apart = [row for row in rows if row[2].kind == "collective"]
    line = kernels([row for row in rows if row[2].kind != "collective"])
    lines = [line]
    architecture = step.system.accelerator.architecture
    pace = step.runtime.training.slower(architecture) if step.local.graph.facts.mode == "train" else 1.0
    if pace != 1.0:
        key = f"{step.runtime.name}: training.pace.{architecture.lower().replace(' ', '-')}"
        given = (("pace", pace), ("kernels", line.value))
        lines.append(
            Line("slower in a step than alone", (pace - 1) * line.value, "s", formula="(pace - 1) kernels",
                 inputs=given, records=(key,))
        )  # fmt: skip
    axes = dict.fromkeys((*(str(row[1].attr("axis")) for row in apart), *spent.exposed))
    for axis in axes:
        own = kernels([row for row in apart if row[1].attr("axis") == axis], "collectives")
        exposed = share * spent.exposed.get(axis, 0.0)
        if own.value or exposed:
            lines.append(filled(f"exposed {axis} communication", exposed, "s", (own,), "beside compute"))
    lines += _slowed(share * spent.slowed, share * sum(spent.hidden.values()), step)
    return filled(name, share * spent.elapsed, "s", tuple(lines), "waiting for the host to launch")


def _slowed(seconds: float, hidden: float, step: Step, name: str = "slowed beside collectives") -> list[Line]:
    if not seconds:
        return []
    given = (("overlap_slowdown", step.runtime.training.overlap_slowdown.value), ("hidden", hidden))
    return [
        Line(
            name, seconds, "s", formula="overlap_slowdown hidden", inputs=given,
            records=(f"{step.runtime.name}: training.overlap_slowdown",),
        )
    ]  # fmt: skip


def _ends(step: Step) -> list[Line]:
    """What a rank does once a step, on average over the pipeline."""
    ranks, launch, name = step.ranks, step.runtime.launch.value, step.runtime.name
    share = 1 / len(ranks)
    rows = [(share, op, work, price) for rank in ranks for op, work, price in rank.ops if price.seconds]
    lines = []
    exchanged = sum(r.exposed + r.head for r in ranks) * share
    for title, value, own, rest in (
        ("optimizer", sum(r.optimizer for r in ranks) * share,
         [row for row in rows if row[1].attr("role") not in REDUCED], "rounding"),
        ("gradient and weight exchange", exchanged,
         [row for row in rows if row[1].attr("role") in REDUCED], "beside backward and forward"),
    ):  # fmt: skip
        calls = sum(row[0] for row in own)
        started = Line(
            "launches", calls * launch, "s", formula="calls launch", inputs=(("calls", calls), ("launch", launch)),
            records=(f"{name}: launch",),
        )  # fmt: skip
        parts = (kernels(own, "kernels" if title == "optimizer" else "collectives"), started)
        if value:
            lines.append(filled(title, value, "s", parts, rest))
    hidden, slowed = (sum(found) * share for found in ([r.hidden for r in ranks], [r.slowed for r in ranks]))
    return [*lines, *_slowed(slowed, hidden, step, "compute slowed by the exchange")]


def _pipeline(e: Estimate, step: Step) -> list[Line]:
    """Transfers to the host, what the host adds to a layer, and the wait for other stages."""
    plan, lines = step.plan, list[Line]()
    known = dict(e.phase_time_s)
    offload = known.get("offload", 0.0)
    if offload:
        link = step.system.host_link
        given: tuple[tuple[str, float], ...] = (
            ("bytes", offload * link.bandwidth.value),
            ("bandwidth", link.bandwidth.value),
        )
        lines.append(
            Line(
                "offload", offload, "s", formula="bytes / bandwidth", inputs=given, records=(f"{link.name}: bandwidth",)
            )
        )
    stall = step.runtime.training.layer_overhead
    if stall is not None:
        layers = sum(len(c.layers) for c in step.chunks) / plan.pp
        given = (("layers", layers), ("micro_batches", float(plan.micro_batches)), ("layer_overhead", stall.value))
        lines.append(
            Line("host, a layer and pass", host_stalls(step), "s", formula="2 layers micro_batches layer_overhead",
                 inputs=given, records=(f"{step.runtime.name}: training.layer_overhead",))
        )  # fmt: skip
    waiting = known.get("waiting in the pipeline", 0.0)
    if waiting:
        sends = max(cost.send for rank in step.pipeline.stages for cost in rank)
        given = (("pp", float(plan.pp)), ("micro_batches", float(plan.micro_batches)), ("longest_send", sends))
        note = f"{plan.schedule}: the last rank's end less what the average rank does"
        lines.append(Line("waiting in the pipeline", waiting, "s", inputs=given, note=note))
    return lines


def _mfu(m: Mfu, e: Estimate, step: Step) -> Line:
    """One convention: FLOPs of a token times tokens a second over the peak."""
    rate = Line(
        "tokens_per_s", e.tokens_per_s, "tokens/s", formula="tokens / (step_time num_gpus)",
        inputs=(("tokens", float(e.tokens_per_step)), ("step_time", e.step_time_s), ("num_gpus", float(e.num_gpus))),
    )  # fmt: skip
    device, compute = step.system.accelerator, precision(step.how.precision).compute
    key = f"peak.{device.matmul_engine(compute)}.{SAME_RATE.get(compute, compute)}"
    given = (("flops_per_token", m.flops_per_token), ("tokens_per_s", e.tokens_per_s), ("peak", e.peak_flops_per_s))
    return Line(
        f"MFU, {m.convention.partition(':')[0]}", m.value, "1", formula="flops_per_token tokens_per_s / peak",
        inputs=given, behind=(_per_token(m, e), rate), records=(key,),
    )  # fmt: skip


def _per_token(m: Mfu, e: Estimate) -> Line:
    """FLOPs of a token: of the parameters, and of attention's pairs."""
    by_name = {one.convention: one.flops_per_token for one in e.mfu}
    if m.convention not in (NONCAUSAL, CAUSAL, PALM) or not by_name.keys() >= {NONCAUSAL, CAUSAL, PALM}:
        return Line("flops_per_token", m.flops_per_token, "FLOP", note=m.convention)
    attention = 2 * (by_name[NONCAUSAL] - by_name[CAUSAL])
    embedding = (by_name[PALM] - by_name[NONCAUSAL]) / 6
    left_out = 0.0 if m.convention == PALM else embedding
    numel = (by_name[PALM] - attention) / 6
    weights = Line(
        "parameters", 6 * (numel - left_out), "FLOP", formula="6 (N - N_embedding)",
        inputs=(("N", numel), ("N_embedding", left_out)),
    )  # fmt: skip
    half = m.convention == CAUSAL
    pairs = Line(
        "attention", attention / (2 if half else 1), "FLOP",
        note="6 L H D S: half of the pairs" if half else "12 L H D S: all pairs",
    )  # fmt: skip
    return Line("flops_per_token", m.flops_per_token, "FLOP", (weights, pairs), note=m.convention)
