"""What to change: other plans of the same model, each priced as the estimate itself is, and ranked by what they bring.

Where the step does not fit, or only tightly, plans that take less memory; else, where asked for, faster ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace

from .answer import Setting, unpriced_ops, verdict
from .effect import check_plan
from .graph.errors import TorchperfError
from .graph.estimate import Estimate, Memory
from .graph.plan import Plan
from .graph.suggestion import Suggestion
from .partition.replicas import groups
from .rank_memory import most_loaded
from .report import units
from .rewrite import precision
from .schedule import memory
from .step import ChunkCost, Planner, Step
from .suggestions_ways import FASTER, SAVERS, Change, Way

MOST = 5
GAIN = 0.02  # share of time (or, where tight, of memory) from which a change is worth a line
PAIRS = 3  # two changes at once that are tried where none alone makes it fit
LOUD = 0.10  # share of memory from which logits and loss bring a suggestion, as in the report
PlannerOf = Callable[[Plan, str], Planner]  # a resolved plan and a precision -> its planner; raises TorchperfError


@dataclass(slots=True)
class Advisor:
    """Prices other ways to run the step of an estimate.

    another  planner of a plan with other GPUs, micro-batch or precision
    strict   leave out ways with operators that no rule covers
    """

    found: Estimate
    step: Step
    asked: Way
    setting: Setting
    another: PlannerOf
    strict: bool = False
    _known: dict[Way, Suggestion | None] = field(default_factory=dict)

    def suggestions(self, every: bool) -> tuple[Suggestion, ...]:
        """At most MOST of them, the best first; `every`: faster plans too where it fits."""
        if self.found.mode != "train":
            return ()
        if self.found.verdict == "does not fit":
            return self._that_fit()
        if every:
            return self._faster(FASTER if self.found.verdict == "fits" else SAVERS | FASTER)
        return self._faster(SAVERS) if self.found.verdict == "tight" else ()

    def _that_fit(self) -> tuple[Suggestion, ...]:
        """Those that make it fit, the least time first; else two changes at once, and what saves most."""
        alone = {name: s for name, s in self._priced(SAVERS) if s.device_bytes < self.found.memory.device}
        loss = self.fused_loss()
        fitting = _fastest(s for s in alone.values() if s.verdict != "does not fit")
        if loss is not None and loss.verdict != "does not fit":
            return (loss, *fitting[: MOST - 1])
        if fitting:
            return (*fitting[: MOST - 1], *([loss] if loss else []))
        saving = sorted(alone, key=lambda name: alone[name].device_bytes)
        both = self._pairs(saving)
        rest = [alone[name] for name in saving]
        return (*both[: MOST - 2], *rest)[: MOST - bool(loss)] + ((loss,) if loss else ())

    def _pairs(self, saving: list[str]) -> list[Suggestion]:
        """The change that saves most, with twice the GPUs and with each of the next ones; those that fit."""
        first = SAVERS[saving[0]](self.asked) if saving else None
        if first is None:
            return []
        found, left = list[Suggestion](), PAIRS
        for name in dict.fromkeys(("GPUs x 2", *saving[1:])):
            with suppress(TorchperfError):
                way = SAVERS[name](first)
                if left and way is not None and way not in self._known:
                    left -= 1
                    both = self._one(f"{saving[0]}, {name}", way)
                    found += [both] if both and both.verdict != "does not fit" else []
        return _fastest(found)

    def _faster(self, changes: dict[str, Change]) -> tuple[Suggestion, ...]:
        """Those that gain time a token, then (where tight) those that leave room, the least time first."""
        legal = [s for _, s in self._priced(changes) if s.verdict != "does not fit"]
        quick = [s for s in legal if _cost(s) < (1 - GAIN) / self.found.tokens_per_s]
        ranked = _fastest(quick)
        if self.found.verdict == "tight":
            room = (1 - GAIN) * self.found.memory.device
            ranked += _fastest(s for s in legal if s not in quick and s.verdict == "fits" and s.device_bytes < room)
        loss = self.fused_loss()
        return (*ranked[: MOST - bool(loss)], *([loss] if loss else []))

    def _priced(self, changes: dict[str, Change]) -> list[tuple[str, Suggestion]]:
        found: list[tuple[str, Suggestion]] = []
        for name, change in changes.items():
            if name == "selective-ops" and any(other == "selective" for other, _ in found):
                continue
            with suppress(TorchperfError):  # a way that cannot be built is none to suggest
                way = change(self.asked)
                suggestion = way and self._one(name, way)
                if suggestion:
                    found.append((name, suggestion))
        return found

    def _one(self, name: str, way: Way) -> Suggestion | None:
        """A way, priced; None where it changes nothing."""
        if way not in self._known:
            self._known[way] = self._price(name, way)
        return self._known[way]

    def _price(self, name: str, way: Way) -> Suggestion | None:
        plan = way.resolved()
        planner = self.another(plan, way.precision)
        graph = planner.bind(planner.seq)
        check_plan(way.plan, plan, graph)  # a flag that was given cannot be taken back
        step = planner.step(plan)
        if self.strict and unpriced_ops(step.rows):
            return None
        used = self._memory(step, way.precision)
        if step.seconds == self.found.step_time_s and used.device == self.found.memory.device:
            return None
        tokens = (graph.size("batch") or 1) * (graph.size("seq") or 1) * plan.micro_batches * plan.dp
        return Suggestion(
            way.flags(self.asked), name, plan.num_gpus, verdict(used.margin), used.device, used.logits_loss,
            step.seconds, tokens, tokens / (step.seconds * plan.num_gpus),
        )  # fmt: skip

    def _memory(self, step: Step, to: str) -> Memory:
        s = self.setting
        return most_loaded(step, precision.precision(to), s.optimizer, s.runtime, s.device.memory.usable.value)

    def fused_loss(self) -> Suggestion | None:
        """The same step where no logits wait for backward; None where they take little."""
        held = self.found.memory
        if held.logits_loss <= LOUD * held.device:
            return None
        known = {id(cost): _without_loss(cost) for cost in self.step.costs}
        step = replace(self.step, costs=tuple(known[id(cost)] for cost in self.step.costs))
        used = self._memory(step, self.setting.precision)
        return Suggestion("", "fused loss", self.found.num_gpus, verdict(used.margin), used.device, used.logits_loss)


def _cost(s: Suggestion) -> float:
    """Seconds of a GPU a token."""
    return 1 / s.tokens_per_s_per_gpu if s.tokens_per_s_per_gpu else 0.0


def _fastest(found: Iterable[Suggestion]) -> list[Suggestion]:
    return sorted(found, key=lambda s: (_cost(s), s.device_bytes))


def _without_loss(cost: ChunkCost) -> ChunkCost:
    """The chunk without what head and loss keep for backward."""
    if not cost.saved.logits_loss and not cost.peak.logits_loss:
        return cost
    alive = {i: life for i, life in memory.lives(cost.graph, cost.works).items() if life.part != "logits_loss"}
    return replace(cost, peak=memory.peak_of(cost.graph, alive), saved=memory.saved_bytes(cost.graph, alive))


def states_alone(e: Estimate) -> tuple[str, ...]:
    """GPUs over which ZeRO 3 would share weights, gradients and optimizer states, with nothing else beside them."""
    m, plan = e.memory, e.plan
    if e.verdict != "does not fit" or e.mode != "train" or plan.ep > 1 or plan.offload != "none":
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
