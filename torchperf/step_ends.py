"""What a pipeline rank does once a step, and what passes between stages: everything but its micro-batches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from .annotate import work as work_of
from .graph.dtype import bits
from .graph.graph import Parameter
from .graph.op import Op
from .graph.plan import Plan
from .graph.price import Price
from .graph.runtime import Runtime
from .graph.system import System
from .graph.work import Work
from .local_program import LocalProgram
from .partition.fully_sharded import Group
from .partition.replicas import groups
from .price import Pricer
from .rewrite.precision import Precision
from .schedule.streams import Spent
from .step_ops import once_a_step, sends, state_ranks


class Call(NamedTuple):
    """One collective that joins replicas, or the ranks of the model, outside of its program.

    when         gradients: `start`, `end` are seconds from the start of the backward of its micro-batch; weights: from
                 the start of the first forward, below zero before it; model: from the start of the optimizer
    micro_batch  counted from the last: 0 the last, -1 the one before
    """

    when: str
    axis: str
    name: str
    micro_batch: int
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class RankCost:
    """What one pipeline rank does once a step. Seconds.

    exposed, hidden   of the collectives of gradients and weights, launches included; of `exposed`, `head` is apart
    slowed            what compute loses beside the hidden ones
    """

    parameters: tuple[Parameter, ...]
    ops: tuple[tuple[Op, Work, Price], ...]
    optimizer: float
    exposed: float
    hidden: float
    head: float
    offload: float
    slowed: float = 0.0
    calls: tuple[Call, ...] = ()


@dataclass(frozen=True, slots=True)
class Ends:
    """Prices head and tail of a step."""

    pricer: Pricer
    system: System
    runtime: Runtime
    optimizer: str
    to: Precision

    def send(self, plan: Plan, nbytes: int) -> float:
        """Seconds to pass an activation on; where the runtime does so, in slices that are gathered on arrival."""
        return sum(self._price(op) for op in sends(plan, self.runtime.training, nbytes))

    def _price(self, op: Op) -> float:
        return self.pricer(op, work_of(op)).seconds

    def rank(
        self, plan: Plan, parameters: tuple[Parameter, ...], local: LocalProgram, spent: Sequence[dict[str, Spent]],
        copies: Group | None = None,
    ) -> RankCost:  # fmt: skip
        """What a rank with these parameters does once a step; `spent` is the time of a micro-batch on its chunks.

        copies   pipeline ranks that hold the same parameters
        """
        training = self.runtime.training
        once = once_a_step(plan, parameters, local, training, self.optimizer, self.to, copies)
        ops: list[tuple[Op, Work, Price]] = []
        reduce = [(op, self._add(ops, op)) for op in once.reduce]
        gather = [(op, self._add(ops, op)) for op in once.gather]
        whole = [(op, self._add(ops, op)) for op in once.model_wide]
        window = sum(own["backward"].elapsed for own in spent if "backward" in own)
        opening = sum(own["forward"].elapsed for own in spent if "forward" in own)
        calls = list(_gradients(reduce, window, "gradients" in training.overlap, plan.micro_batches - 1))
        late = sum(max(0.0, c.end - max(c.start, window)) for c in calls)
        weights = _weights(gather, opening, "weights" in training.overlap)
        early = max((-c.start for c in weights), default=0.0)
        hidden = sum(max(0.0, min(c.end, window) - c.start) for c in calls)
        hidden += sum(max(0.0, c.end - max(c.start, 0.0)) for c in weights)
        calls += [*weights, *_in_turn("model", whole)]
        seconds = sum(self._add(ops, op) for op in once.passes) + sum(t for _, t in whole)
        slowed = hidden * training.overlap_slowdown.value
        moved = self.offload(plan, parameters, local.experts)
        return RankCost(parameters, tuple(ops), seconds, late, hidden, early, moved, slowed, tuple(calls))

    def _add(self, ops: list[tuple[Op, Work, Price]], op: Op) -> float:
        work = work_of(op)
        price = self.pricer(op, work)
        ops.append((op, work, price))
        return price.seconds + (self.runtime.launch.value if price.seconds else 0.0)

    def offload(
        self, plan: Plan, parameters: Iterable[Parameter], experts: frozenset[str], train: bool = True
    ) -> float:
        """Seconds on the host link a step: gradients down and new weights up; parameters for each pass as well.

        A rank moves the gradients of the states that it owns, and for a pass the weights that it holds.
        """
        if plan.offload == "none":
            return 0.0
        owned = held = 0.0
        for p in parameters:
            kind = p.names[0] in experts
            owned += p.numel / state_ranks(plan, kind) if train and p.trained else 0.0
            held += p.numel / (groups(plan, kind).shard.ranks if plan.zero_stage == 3 else 1)
        width = bits(self.to.compute) / 8
        moved = owned * (bits(plan.reduce_dtype) / 8 + width)
        if plan.offload == "params+optimizer":
            moved += (2 if train else 1) * plan.micro_batches * held * width
        return moved / self.system.host_link.bandwidth.value


def merged(
    parameters: Iterable[Parameter], experts: frozenset[str], summed: frozenset[str] = frozenset()
) -> tuple[Parameter, ...]:
    """Parameters of a dtype treated alike (trained, expert, tied, summed) as one long one, by the name of the first."""
    found: dict[tuple[object, ...], list[Parameter]] = {}
    for p in parameters:
        name = p.names[0]
        key = (p.dtype, p.trainable, p.gradient, name in experts, len(p.names) > 1, name in summed)
        found.setdefault(key, []).append(p)
    return tuple(replace(alike[0], shape=(sum(p.numel for p in alike),)) for alike in found.values())


Timed = Sequence[tuple[Op, float]]  # collectives and their seconds


def _gradients(parts: Timed, window: float, overlaps: bool, last: int) -> Iterable[Call]:
    """Collectives of gradients: those of a micro-batch beside its own backward, the others beside the last one."""
    own: dict[int, list[tuple[Op, float]]] = {}
    for op, seconds in parts:
        own.setdefault(op.attr("micro_batch", last), []).append((op, seconds))
    for j, some in sorted(own.items()):
        for (op, _), (start, end) in zip(some, _buckets([t for _, t in some], window, overlaps), strict=True):
            yield Call("gradients", str(op.attr("axis")), op.name, j - last, start, end)


def _weights(parts: Timed, window: float, overlaps: bool) -> list[Call]:
    """Gathers of weights: as gradients are reduced, but backwards in time: each is done as its share is needed."""
    spans = _buckets([seconds for _, seconds in reversed(parts)], window, overlaps)
    found = [
        Call("weights", str(op.attr("axis")), op.name, 0, window - end, window - start)
        for (op, _), (start, end) in zip(reversed(parts), spans, strict=True)
    ]
    return found[::-1]


def _in_turn(when: str, parts: Timed) -> list[Call]:
    spans = _buckets([seconds for _, seconds in parts], 0.0, False)
    return [
        Call(when, str(op.attr("axis")), op.name, 0, start, end)
        for (op, _), (start, end) in zip(parts, spans, strict=True)
    ]


def _buckets(parts: Sequence[float], window: float, overlaps: bool) -> list[tuple[float, float]]:
    """Start and end of collectives in buckets that start as their share of `window` seconds of compute is done.

    With n buckets the first starts after 1/n of the window; the last can only start at its end. Without overlap all do.
    """
    found, end, n = list[tuple[float, float]](), 0.0, len(parts)
    for i, seconds in enumerate(parts):
        start = max(end, window * (i + 1) / n if overlaps else window)
        end = start + seconds
        found.append((start, end))
    return found
