"""A priced forward pass -> the tables of where its time goes, operator by operator with what bounds each."""

from __future__ import annotations

from .answer import short_module
from .graph.estimate import Share
from .graph.op import Op
from .graph.price import Price
from .graph.system import Accelerator
from .graph.work import Work
from .inference_cost import StageCost, StepCost
from .price.roofline import roofline

_SIZES = ("batch", "heads", "m", "n", "k", "groups", "q", "kv", "head_dim", "ranks", "nbytes")


def operators(cost: StageCost) -> tuple[Share, ...]:
    """Kernels of a pass, alike ones of all layers together, the longest first; `bound` as the price has it."""
    tally: dict[tuple[str, str, str], list[float]] = {}
    for count, op, work, price in cost.rows():
        if price.seconds > 0:
            sizes = " ".join(f"{name}={size}" for name, size in work.dims if name in _SIZES)
            kept = tally.setdefault((_label(op, work), sizes, price.bound), [0.0, 0, 0.0, 0.0])
            kept[0] += count * price.seconds
            kept[1] += count
            kept[2] += count * work.flops
            kept[3] += count * work.nbytes
    ranked = sorted(tally.items(), key=lambda item: -item[1][0])
    return tuple(
        Share(name, seconds, int(calls), round(flops), round(size), bound, "", dims)
        for (name, dims, bound), (seconds, calls, flops, size) in ranked
    )


def _label(op: Op, work: Work) -> str:
    where = op.module if work.kind in ("matmul", "attention") else short_module(op.module)
    kind = work.equation if work.kind == "collective" else work.kind
    return f"{kind} {where}".strip()


def parts(step: StepCost) -> tuple[tuple[str, float], ...]:
    """Seconds of a pass by kind of work, summed over its stages; what waits for nothing of the kind is `idle`."""
    found: dict[str, float] = {}
    for cost in step.stages:
        for count, _, work, price in cost.rows():
            if price.seconds:
                found[work.kind] = found.get(work.kind, 0.0) + count * price.seconds
        for name, seconds in cost.stage.added:
            found[name] = found.get(name, 0.0) + seconds
        if cost.stage.hop:
            found["sent to the next stage"] = found.get("sent to the next stage", 0.0) + cost.stage.hop
    idle = step.seconds - sum(found.values())
    if idle > 1e-9:
        name = "other micro-batches" if step.micro_batches > 1 else "launches of the host"
        found[name] = idle
    return tuple(sorted(found.items(), key=lambda item: -item[1]))


def read_bound(step: StepCost, bandwidth: float) -> float:
    """Seconds in which the weights and the cache that a pass needs are read once, at full bandwidth."""
    each = [
        sum(count * work.bytes_read for count, _, work, _ in cost.rows() if work.kind in ("matmul", "attention"))
        / bandwidth
        for cost in step.stages
    ]
    return max(sum(each), step.micro_batches * max(each))


def compute_bound(step: StepCost, accelerator: Accelerator) -> float:
    """Seconds of a pass whose kernels all run at full peak and bandwidth; no pass is faster."""
    each = [sum(count * roofline(work, accelerator) for count, _, work, _ in cost.rows()) for cost in step.stages]
    return sum(each) + (step.micro_batches - 1) * max(each)


def priced_rows(step: StepCost) -> list[tuple[float, Op, Work, Price]]:
    """Every kernel of a pass through all stages."""
    return [(float(count), op, work, price) for cost in step.stages for count, op, work, price in cost.rows()]
