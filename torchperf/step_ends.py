"""What a pipeline rank does once a step, and what passes between stages: everything but its micro-batches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

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
from .step_ops import once_a_step, sends


@dataclass(frozen=True, slots=True)
class RankCost:
    """What one pipeline rank does once a step. Seconds."""

    parameters: tuple[Parameter, ...]
    ops: tuple[tuple[Op, Work, Price], ...]
    optimizer: float
    exposed: float
    hidden: float
    head: float
    offload: float


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
        reduce = [self._add(ops, op) for op in once.reduce]
        gather = [self._add(ops, op) for op in once.gather]
        whole = [self._add(ops, op) for op in once.model_wide]
        window = sum(own["backward"].elapsed for own in spent if "backward" in own)
        opening = sum(own["forward"].elapsed for own in spent if "forward" in own)
        late = _exposed(reduce, window) if "gradients" in training.overlap else sum(reduce)
        early = _exposed(gather, opening) if "weights" in training.overlap else sum(gather)
        hidden = sum(reduce) + sum(gather) - late - early
        seconds = sum(self._add(ops, op) for op in once.passes) + sum(whole)
        slowed = hidden * training.overlap_slowdown.value
        return RankCost(parameters, tuple(ops), seconds, late + slowed, hidden, early, self._offload(plan, parameters))

    def _add(self, ops: list[tuple[Op, Work, Price]], op: Op) -> float:
        work = work_of(op)
        price = self.pricer(op, work)
        ops.append((op, work, price))
        return price.seconds + (self.runtime.launch.value if price.seconds else 0.0)

    def _offload(self, plan: Plan, parameters: Iterable[Parameter]) -> float:
        """Seconds on the host link a step: gradients down and new weights up; parameters for each pass as well."""
        if plan.offload == "none":
            return 0.0
        link = self.system.host_link.bandwidth.value
        numel = sum(p.numel for p in parameters if p.trained) / (groups(plan).shard.ranks if plan.zero_stage else 1)
        width = bits(self.to.compute) / 8
        moved = numel * (bits(plan.reduce_dtype) / 8 + width)
        if plan.offload == "params+optimizer":
            moved += 2 * plan.micro_batches * numel * width
        return moved / link


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


def _exposed(parts: Sequence[float], window: float) -> float:
    """Of collectives in buckets that start as their share of `window` seconds of compute is done: what is left over.

    With n buckets the first starts after 1/n of the window; the last can only start at its end.
    """
    if not parts:
        return 0.0
    n = len(parts)
    end = 0.0
    for i, seconds in enumerate(parts):
        end = max(end, window * (i + 1) / n) + seconds
    return end - window
