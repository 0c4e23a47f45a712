"""One training step (or forward pass) of a plan: the chunks of the pipeline, their time and memory, and what follows.

The step of a rank is head (weights gathered), its micro-batches in the order of the schedule, and tail (gradients
reduced, the optimizer, weights gathered again). What plans share, local programs and prices, is worked out once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from .annotate import work as work_of
from .graph.dtype import bits
from .graph.graph import Block, Graph, Parameter
from .graph.op import Op
from .graph.plan import Plan
from .graph.price import Price
from .graph.system import Runtime, System
from .graph.tensor import Value
from .graph.work import Work
from .local_program import Bind, How, LocalProgram, local_program
from .partition.fully_sharded import Sharding, fully_sharded
from .partition.replicas import gradient_sync, groups
from .partition.stages import Chunk, chunks_of
from .price import Pricer
from .rewrite import optimizer
from .rewrite import precision as precisions
from .schedule import memory
from .schedule.pipeline import Pipeline, StageCost, step_time
from .schedule.pipeline_order import in_flight
from .schedule.streams import Spent, micro_batch

Priced = tuple[float, Op, Work, Price]  # how often on one device in a step, on average over the pipeline


@dataclass(frozen=True, slots=True)
class ChunkCost:
    """One virtual stage on one rank, for one micro-batch. `saved`: bytes that wait for its backward."""

    graph: Graph
    works: tuple[tuple[Work, ...], ...]
    prices: tuple[tuple[Price, ...], ...]
    spent: dict[str, Spent]
    peak: memory.Peak
    saved: memory.Saved


@dataclass(frozen=True, slots=True)
class RankCost:
    """What one pipeline rank does once a step. Seconds; `host_bytes` live in the memory of its host."""

    parameters: tuple[Parameter, ...]
    ops: tuple[tuple[Op, Work, Price], ...]
    optimizer: float
    exposed: float
    hidden: float
    head: float
    offload: float


@dataclass(slots=True)
class Step:
    """A priced step.

    rank_of     chunks of each pipeline rank
    seconds     of the step; `busy` of each rank
    """

    plan: Plan
    local: LocalProgram
    chunks: tuple[Chunk, ...]
    costs: tuple[ChunkCost, ...]  # one a chunk; equal chunks share one object
    ranks: tuple[RankCost, ...]
    pipeline: Pipeline
    seconds: float
    busy: tuple[float, ...]
    rank_of: tuple[tuple[int, ...], ...]

    @property
    def rows(self) -> list[Priced]:
        """Every kernel of a step on one device, on average over the pipeline."""
        share = self.plan.micro_batches / self.plan.pp
        tally: dict[int, tuple[ChunkCost, int]] = {}
        for cost in self.costs:
            tally[id(cost)] = (cost, tally.get(id(cost), (cost, 0))[1] + 1)
        found: list[Priced] = []
        for cost, times in tally.values():
            for count, block, row, prices in zip(
                cost.graph.counts, cost.graph.blocks, cost.works, cost.prices, strict=True
            ):
                if count:
                    own = count * times * share
                    found += [(own, op, work, price) for op, work, price in zip(block.ops, row, prices, strict=True)]
        for rank in self.ranks:
            found += [(1 / self.plan.pp, op, work, price) for op, work, price in rank.ops]
        return found


@dataclass(slots=True)
class Planner:
    """Prices plans of one model on one system. `bind` gives its graph at a sequence length."""

    bind: Bind
    seq: int | None
    system: System
    runtime: Runtime
    how: How
    pricer: Pricer = field(init=False)
    _locals: dict[Plan, LocalProgram] = field(default_factory=dict)
    _rows: dict[int, tuple[Block, tuple[Work, ...], tuple[Price, ...]]] = field(default_factory=dict)
    _chunks_of: dict[tuple[object, ...], tuple[Chunk, ...]] = field(default_factory=dict)
    _merged: dict[int, tuple[Parameter, ...]] = field(default_factory=dict)
    _chunks: dict[tuple[object, ...], ChunkCost] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.pricer = Pricer(self.system, self.runtime)

    @property
    def to(self) -> precisions.Precision:
        return precisions.precision(self.how.precision)

    def step(self, plan: Plan) -> Step:
        """The step under a resolved plan. Raises TorchperfError where it is not legal."""
        local = self._local(plan)
        chunks = self._split(local, plan)
        costs = tuple(self._chunk(local, chunk, plan) for chunk in chunks)
        rank_of = _ranks(plan)
        ranks = self._ranks_of(plan, local, rank_of, chunks, costs)
        training = self.runtime.training
        stages = tuple(tuple(self._cost(plan, chunks[c], costs[c]) for c in own) for own in rank_of)
        tails = tuple(r.exposed + r.optimizer + r.offload for r in ranks)
        pipeline = Pipeline(
            stages, plan.micro_batches, plan.schedule if plan.pp > 1 else "1f1b", "p2p" in training.overlap,
            tuple(r.head for r in ranks), tails,
        )  # fmt: skip
        time = step_time(pipeline)
        return Step(plan, local, chunks, costs, ranks, pipeline, time.seconds, time.busy, rank_of)

    def _split(self, local: LocalProgram, plan: Plan) -> tuple[Chunk, ...]:
        key = (id(local), plan.pp, plan.pp_split, plan.virtual_stages)
        if key not in self._chunks_of:
            self._chunks_of[key] = chunks_of(local.graph, plan)
        return self._chunks_of[key]

    def _parameters(self, local: LocalProgram, chunk: Chunk) -> tuple[Parameter, ...]:
        """A chunk's parameters, those alike as one; Adafactor's states follow from each shape."""
        own = chunk.graph.facts.parameters
        if self.how.optimizer == "adafactor":
            return own
        key = id(chunk.graph)
        if key not in self._merged:
            self._merged[key] = merged(own, local.experts)
        return self._merged[key]

    def _local(self, plan: Plan) -> LocalProgram:
        """The local program, known again where nothing that shapes it differs."""
        key = replace(
            plan, dp=1, dp_shard=1, global_batch=min(plan.micro_batches, 2), zero_stage=3 * (plan.zero_stage == 3),
            reduce_dtype="", offload="", schedule="", reshard=True,
        )  # fmt: skip
        if self.to.linear:  # casts of weights are shared by the micro-batches, and by the ranks that gather them
            key = replace(key, dp_shard=plan.dp_shard, dp=plan.dp_shard, global_batch=plan.micro_batches)
        if ":" not in plan.recompute:
            key = replace(key, pp=1, pp_split=(), virtual_stages=1)
        if key not in self._locals:
            arch = self.system.accelerator.architecture
            self._locals[key] = local_program(self.bind, self.seq, plan, self.how, self.runtime, arch)
        return self._locals[key]

    def _block(self, block: Block) -> tuple[tuple[Work, ...], tuple[Price, ...]]:
        known = self._rows.get(id(block))
        if known is None:
            row = tuple(work_of(op) for op in block.ops)
            prices = tuple(self.pricer(op, work) for op, work in zip(block.ops, row, strict=True))
            known = self._rows[id(block)] = (block, row, prices)
        return known[1], known[2]

    def _chunk(self, local: LocalProgram, chunk: Chunk, plan: Plan) -> ChunkCost:
        """Time and memory of a chunk; chunks that call the same blocks in the same order are one."""
        sharding = self._sharding(local, plan)
        key = (id(local), tuple(s.block for s in chunk.graph.segments), sharding)
        if key not in self._chunks:
            graph = fully_sharded(chunk.graph, sharding) if sharding else chunk.graph
            rows = [self._block(block) for block in graph.blocks]
            works, prices = tuple(r[0] for r in rows), tuple(r[1] for r in rows)
            spent = micro_batch(graph, prices, self.runtime, self.system.accelerator.architecture)
            alive = memory.lives(graph, works)
            cost = ChunkCost(
                graph, works, prices, spent, memory.peak_of(graph, alive), memory.saved_bytes(graph, alive)
            )
            self._chunks[key] = cost
        return self._chunks[key]

    def _sharding(self, local: LocalProgram, plan: Plan) -> Sharding | None:
        dense = groups(plan).shard
        if plan.zero_stage < 3 or dense.ranks == 1:
            return None
        experts = groups(plan, experts=True).shard
        gather = bits(self.to.gather) if self.to.gather else 0
        return Sharding(dense, experts, local.experts, plan.reshard, gather, plan.reduce_dtype)

    def _cost(self, plan: Plan, chunk: Chunk, cost: ChunkCost) -> StageCost:
        """The chunk for the schedule."""
        forward, backward = cost.spent.get("forward", Spent()), cost.spent.get("backward", Spent())
        again = cost.spent.get("recompute", Spent())
        stall = self.runtime.training.layer_overhead
        host = len(chunk.layers) * stall.value if stall else 0.0
        weight = min(backward.weight, backward.elapsed)
        return StageCost(
            forward.elapsed + host, backward.elapsed - weight + host, weight, again.elapsed,
            self._send(plan, max(chunk.sends, chunk.returns)),
        )  # fmt: skip

    def _send(self, plan: Plan, nbytes: int) -> float:
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

    def _ranks_of(
        self, plan: Plan, local: LocalProgram, rank_of: Sequence[Sequence[int]], chunks: Sequence[Chunk],
        costs: Sequence[ChunkCost],
    ) -> tuple[RankCost, ...]:  # fmt: skip
        """Once a step, of every pipeline rank; ranks alike are worked out once."""
        known: dict[tuple[object, ...], RankCost] = {}
        found = []
        for own in rank_of:
            parameters = tuple(p for c in own for p in self._parameters(local, chunks[c]))
            key = (*(id(costs[c]) for c in own), *((p.numel, p.dtype, p.trained, len(p.names)) for p in parameters))
            if key not in known:
                known[key] = self._rank(plan, local, [chunks[c] for c in own], [costs[c] for c in own])
            found.append(known[key])
        return tuple(found)

    def _rank(self, plan: Plan, local: LocalProgram, chunks: Sequence[Chunk], costs: Sequence[ChunkCost]) -> RankCost:
        """What a pipeline rank does once a step."""
        parameters = tuple(p for chunk in chunks for p in self._parameters(local, chunk))
        if local.graph.facts.mode != "train":
            return RankCost(parameters, (), 0.0, 0.0, 0.0, 0.0, 0.0)
        training = self.runtime.training
        sync = gradient_sync(parameters, plan, local.experts, round(training.bucket.value), self.to.compute)
        ops: list[tuple[Op, Work, Price]] = []
        reduce = [self._add(ops, op) for op in sync.reduce.ops]
        gather = [self._add(ops, op) for op in sync.gather.ops]
        whole = [self._add(ops, op) for op in self._model_wide(plan, parameters)]
        window = sum(cost.spent["backward"].elapsed for cost in costs if "backward" in cost.spent)
        opening = sum(cost.spent["forward"].elapsed for cost in costs if "forward" in cost.spent)
        late = _exposed(reduce, window) if "gradients" in training.overlap else sum(reduce)
        early = _exposed(gather, opening) if "weights" in training.overlap else sum(gather)
        hidden = sum(reduce) + sum(gather) - late - early
        masters = not (training.parameters == "shard" and plan.zero_stage == 3)
        step = optimizer.passes(
            parameters, self.how.optimizer, self.to, training, masters=masters,
            shards=lambda p: state_ranks(plan, p.names[0] in local.experts),
        )  # fmt: skip
        seconds = sum(self._add(ops, op) for op in step) + sum(whole)
        slowed = hidden * training.overlap_slowdown.value
        return RankCost(parameters, tuple(ops), seconds, late + slowed, hidden, early, self._offload(plan, parameters))

    def _add(self, ops: list[tuple[Op, Work, Price]], op: Op) -> float:
        work = work_of(op)
        price = self.pricer(op, work)
        ops.append((op, work, price))
        return price.seconds + (self.runtime.launch.value if price.seconds else 0.0)

    def _model_wide(self, plan: Plan, parameters: Iterable[Parameter]) -> list[Op]:
        """The sum of gradient norms over the ranks that split the model; tied weights at both ends of a pipeline."""
        found = []
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


def merged(parameters: Iterable[Parameter], experts: frozenset[str]) -> tuple[Parameter, ...]:
    """Parameters of a dtype treated alike (trained, expert, tied) as one long one, by the name of the first."""
    found: dict[tuple[object, ...], list[Parameter]] = {}
    for p in parameters:
        found.setdefault((p.dtype, p.trainable, p.gradient, p.names[0] in experts, len(p.names) > 1), []).append(p)
    return tuple(replace(alike[0], shape=(sum(p.numel for p in alike),)) for alike in found.values())


def state_ranks(plan: Plan, experts: bool = False) -> int:
    """Ranks that share the optimizer states of a parameter."""
    return groups(plan, experts).shard.ranks if plan.zero_stage else 1


def held(step: Step, rank: int) -> tuple[int, ...]:
    """Micro-batches whose activations each chunk of a rank holds at its worst moment."""
    plan = step.plan
    own = step.rank_of[rank]
    nbytes = tuple(float(step.costs[c].saved.nbytes) for c in own)
    schedule = plan.schedule if plan.pp > 1 else "1f1b"
    return in_flight(schedule, rank, plan.pp, plan.micro_batches, len(own), nbytes).forward


def _ranks(plan: Plan) -> tuple[tuple[int, ...], ...]:
    """The chunks of each rank: rank, rank + pp, ...; under DualPipe one of each direction."""
    if plan.schedule == "dualpipe" and plan.pp > 1:
        return tuple((r, plan.pp - 1 - r) for r in range(plan.pp))
    return tuple(tuple(range(r, plan.pp * plan.virtual_stages, plan.pp)) for r in range(plan.pp))


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
