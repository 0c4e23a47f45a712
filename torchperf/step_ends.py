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
from .graph.tensor import Value
from .graph.work import Work
from .local_program import LocalProgram
from .partition.replicas import gradient_sync, groups
from .price import Pricer
from .rewrite import optimizer
from .rewrite.precision import Precision
from .schedule.streams import Spent


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
        if plan.pp == 1 or not nbytes:
            return 0.0
        sliced = self.runtime.training.scatter_gather and plan.tp > 1 and not plan.sequence_parallel
        part = nbytes // plan.tp if sliced else nbytes
        seconds = self._price(_transfer("send_recv", part, part, 2, plan.mesh.stride("pp"), "pp"))
        if sliced:
            seconds += self._price(_transfer("all_gather", part, nbytes, plan.tp, 1, "tp"))
        return seconds

    def _price(self, op: Op) -> float:
        return self.pricer(op, work_of(op)).seconds

    def rank(
        self, plan: Plan, parameters: tuple[Parameter, ...], local: LocalProgram, spent: Sequence[dict[str, Spent]]
    ) -> RankCost:
        """What a rank with these parameters does once a step; `spent` is the time of a micro-batch on its chunks."""
        experts = local.experts
        training = self.runtime.training
        sync = gradient_sync(parameters, plan, experts, round(training.bucket.value), self.to.compute)
        ops: list[tuple[Op, Work, Price]] = []
        reduce = [self._add(ops, op) for op in sync.reduce.ops]
        gather = [self._add(ops, op) for op in sync.gather.ops]
        whole = [self._add(ops, op) for op in self._model_wide(plan, parameters, local.summed)]
        window = sum(own["backward"].elapsed for own in spent if "backward" in own)
        opening = sum(own["forward"].elapsed for own in spent if "forward" in own)
        late = _exposed(reduce, window) if "gradients" in training.overlap else sum(reduce)
        early = _exposed(gather, opening) if "weights" in training.overlap else sum(gather)
        hidden = sum(reduce) + sum(gather) - late - early
        masters = not (training.parameters == "shard" and plan.zero_stage == 3)
        step = optimizer.passes(
            parameters, self.optimizer, self.to, training, masters=masters,
            shards=lambda p: state_ranks(plan, p.names[0] in experts),
        )  # fmt: skip
        seconds = sum(self._add(ops, op) for op in step) + sum(whole)
        slowed = hidden * training.overlap_slowdown.value
        return RankCost(parameters, tuple(ops), seconds, late + slowed, hidden, early, self._offload(plan, parameters))

    def _add(self, ops: list[tuple[Op, Work, Price]], op: Op) -> float:
        work = work_of(op)
        price = self.pricer(op, work)
        ops.append((op, work, price))
        return price.seconds + (self.runtime.launch.value if price.seconds else 0.0)

    def _model_wide(self, plan: Plan, parameters: Sequence[Parameter], summed: frozenset[str]) -> list[Op]:
        """Sums over the ranks that split the model: gradients put off, the norm, tied weights at a pipeline's ends."""
        found = []
        late = sum(p.numel for p in parameters if p.trained and p.names[0] in summed)
        if late:
            nbytes = late * bits("fp32" if self.runtime.training.wide else self.to.compute) // 8
            found.append(_transfer("all_reduce", nbytes, nbytes, plan.tp, 1, "tp"))
        if "norm" in self.runtime.training.passes and plan.tp * plan.pp > 1:
            found.append(_transfer("all_reduce", 8, 8, plan.tp * plan.pp, 1, "pp"))
        tied = [p for p in parameters if p.trained and len(p.names) > 1]
        if plan.pp > 1 and tied:
            nbytes = sum(p.numel for p in tied) * bits(plan.reduce_dtype) // 8
            found.append(_transfer("all_reduce", nbytes, nbytes, 2, plan.mesh.stride("pp") * (plan.pp - 1), "pp"))
        return found

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


def state_ranks(plan: Plan, experts: bool = False) -> int:
    """Ranks that share the optimizer states of a parameter."""
    return groups(plan, experts).shard.ranks if plan.zero_stage else 1


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


def _transfer(kind: str, before: int, after: int, ranks: int, stride: int, axis: str) -> Op:
    source, target = Value(0, "u8", (before,), (1,)), Value(1, "u8", (after,), (1,))
    attrs = (("axis", axis), ("ranks", ranks), ("stride", stride), ("role", "model"))
    return Op(f"torchperf.{kind}", "optimizer", "", ("self",), (source,), (target,), attrs)
