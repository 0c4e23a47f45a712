"""Other ways to run a step: what the user asked for with one thing changed, legal or None."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from .graph.errors import TorchperfError
from .graph.plan import Plan

FLAGS = {
    "tp": "--tp", "sequence_parallel": "--sequence-parallel", "pp": "--pp", "dp": "--dp", "zero_stage": "--zero",
    "reshard": "--no-reshard", "micro_batch": "--micro-batch", "global_batch": "--global-batch",
    "recompute": "--recompute", "offload": "--offload",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Way:
    """A plan as it is asked for, its open fields open.

    num_gpus   None: as many as the plan needs
    batch      the model's own micro-batch
    shards     whether the runtime keeps sharded parameters
    """

    plan: Plan
    num_gpus: int | None
    precision: str
    batch: int
    shards: bool

    def resolved(self) -> Plan:
        """Raises TorchperfError where the degrees do not fit each other."""
        return self.plan.resolved(self.num_gpus or 0, self.batch, shards=self.shards)

    def flags(self, asked: Way) -> str:
        """What to add to the command that asked for `asked`; the last of two flags counts."""
        found = []
        if self.num_gpus != asked.num_gpus:
            found.append(f"--num-gpus {self.num_gpus}")
        if self.precision != asked.precision:
            found.append(f"--precision {self.precision}")
        for field, flag in FLAGS.items():
            value = getattr(self.plan, field)
            if value != getattr(asked.plan, field):
                found.append(flag if isinstance(value, bool) else f"{flag} {value}")
        return " ".join(found)


Change = Callable[[Way], Way | None]


def _moved(way: Way, **fields: object) -> Way | None:
    """The way with these fields of its plan, on as many GPUs, and with the same global batch where that can be.

    Where it was left open and has too few samples for the replicas, it stays open.
    """
    before = way.resolved()
    plan = replace(way.plan, **fields)  # type: ignore[arg-type]
    if plan.dp:
        plan = replace(plan, dp=before.num_gpus // (plan.tp * plan.cp * plan.pp))
    found = replace(way, plan=plan)
    if _resolved(found, lambda p: p.num_gpus) != before.num_gpus:
        found = replace(found, num_gpus=before.num_gpus)
    if _resolved(found, lambda p: p.global_batch) == before.global_batch:
        return found
    kept = replace(found, plan=replace(plan, global_batch=before.global_batch))
    return found if not plan.global_batch and _resolved(kept, lambda p: p.global_batch) is None else kept


def _resolved(way: Way, of: Callable[[Plan], int]) -> int | None:
    try:
        return of(way.resolved())
    except TorchperfError:
        return None


def _recompute(how: str, way: Way) -> Way | None:
    if way.plan.recompute == how:
        return None
    return replace(way, plan=replace(way.plan, recompute=how))


def _half_batch(way: Way) -> Way | None:
    now = way.resolved().micro_batch
    return _moved(way, micro_batch=now // 2) if now % 2 == 0 else None


def _double_batch(way: Way) -> Way | None:
    return _moved(way, micro_batch=2 * way.resolved().micro_batch)


def _zero(stage: int, way: Way) -> Way | None:
    now = way.resolved()
    if now.dp_shard * now.cp == 1 or now.zero_stage == stage:
        return None
    return replace(way, plan=replace(way.plan, zero_stage=stage))


def _more_zero(way: Way) -> Way | None:
    return _zero(1, way) if way.resolved().zero_stage == 0 else None


def _less_zero(way: Way) -> Way | None:
    """One stage less; a runtime that shards parameters keeps them gathered instead."""
    now = way.resolved()
    if now.zero_stage < 2:
        return None
    if way.shards:
        return replace(way, plan=replace(way.plan, reshard=False)) if now.reshard and now.zero_stage == 3 else None
    return _zero(now.zero_stage - 1, way)


def _spread(axis: str, up: bool, way: Way) -> Way | None:
    now = getattr(way.plan, axis)
    if not up and now % 2:
        return None
    return _moved(way, **{axis: now * 2 if up else now // 2})


def _sequence_parallel(way: Way) -> Way | None:
    if way.plan.tp == 1 or way.plan.sequence_parallel:
        return None
    return replace(way, plan=replace(way.plan, sequence_parallel=True))


def _gpus(up: bool, way: Way) -> Way | None:
    """Twice or half the GPUs, by replicas; a global batch that was asked for is kept."""
    before = way.resolved()
    if not up and before.dp % 2:
        return None
    dp = before.dp * 2 if up else before.dp // 2
    plan = replace(way.plan, dp=dp if way.plan.dp else 0)
    return replace(way, plan=plan, num_gpus=before.num_gpus // before.dp * dp)


def _offload(way: Way) -> Way | None:
    return replace(way, plan=replace(way.plan, offload="optimizer")) if way.plan.offload == "none" else None


def _fp8(way: Way) -> Way | None:
    """The same states under fp8 products: scales of whole tensors where shards are gathered, else current ones."""
    if way.precision != "bf16-mixed":
        return None
    return replace(way, precision="fp8-tensorwise" if way.shards else "fp8-current")


SAVERS: dict[str, Change] = {
    "selective": partial(_recompute, "selective"),
    "selective-ops": partial(_recompute, "selective-ops"),
    "full": partial(_recompute, "full"),
    "micro-batch / 2": _half_batch,
    "more ZeRO": _more_zero,
    "ZeRO 3": partial(_zero, 3),
    "tp x 2": partial(_spread, "tp", True),
    "pp x 2": partial(_spread, "pp", True),
    "sequence parallel": _sequence_parallel,
    "GPUs x 2": partial(_gpus, True),
    "offload": _offload,
}
FASTER: dict[str, Change] = {
    "no recompute": partial(_recompute, "none"),
    "selective": SAVERS["selective"],
    "micro-batch x 2": _double_batch,
    "less ZeRO": _less_zero,
    "tp / 2": partial(_spread, "tp", False),
    "tp x 2": SAVERS["tp x 2"],
    "pp / 2": partial(_spread, "pp", False),
    "pp x 2": SAVERS["pp x 2"],
    "sequence parallel": _sequence_parallel,
    "fp8": _fp8,
    "GPUs / 2": partial(_gpus, False),
    "GPUs x 2": SAVERS["GPUs x 2"],
}
