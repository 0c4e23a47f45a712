"""What to change where a training step does not fit."""

from __future__ import annotations

import math
from dataclasses import replace

from .answer import Setting, verdict
from .graph.estimate import Estimate, Memory
from .graph.plan import Plan
from .partition.replicas import groups
from .rank_memory import most_loaded
from .report import units
from .rewrite import precision
from .step import Planner


def suggestions(e: Estimate, planner: Planner, setting: Setting) -> tuple[str, ...]:
    """The same plan under full recompute, and the GPUs that states alone would take; () where the step fits."""
    if e.verdict != "does not fit" or e.mode != "train":
        return ()
    return (*_recomputed(planner, setting), *_states_alone(e.memory, setting.plan))


def _recomputed(planner: Planner, setting: Setting) -> tuple[str, ...]:
    plan = setting.plan
    if plan.recompute.startswith("full"):
        return ()
    step = planner.step(replace(plan, recompute="full"))
    if not any(block.phase == "recompute" for block in step.local.graph.blocks):
        return ()
    usable = setting.device.memory.usable.value
    m = most_loaded(step, precision.precision(setting.precision), setting.optimizer, setting.runtime, usable)
    loss = (
        f", {units.gib(m.logits_loss)} GiB of them logits and loss: a fused loss saves these" if m.logits_loss else ""
    )
    return (f"under `--recompute full` it {_would(m)}: {units.gib(m.device)} GiB{loss}",)


def _would(m: Memory) -> str:
    return {"fits": "fits", "tight": "fits tightly"}.get(verdict(m.margin), "does not fit either")


def _states_alone(m: Memory, plan: Plan) -> tuple[str, ...]:
    """GPUs over which ZeRO 3 would share weights, gradients and optimizer states, with nothing else beside them."""
    if plan.ep > 1 or plan.offload != "none":
        return ()
    shards = groups(plan).shard.ranks
    states = sum(
        nbytes * (shards if plan.zero_stage >= stage else 1)
        for nbytes, stage in ((m.parameters, 3), (m.gradients, 2), (m.optimizer, 1))
    )
    least = math.ceil(math.ceil(states / m.usable) / plan.cp) * plan.cp * plan.tp * plan.pp
    width = units.plain(sum(n for _, n in m.bytes_per_parameter))
    split = " at this tp and pp" if plan.tp * plan.pp > 1 else ""
    return (
        f"states alone ({width} bytes a parameter, shared by ZeRO 3) would fit on {units.plural(least, 'GPU')} of "
        f"{units.gib(m.usable)} GiB usable{split}, with no room for activations",
    )
