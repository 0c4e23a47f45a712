"""One training step (or forward pass) of a plan: the chunks of the pipeline, their time and memory, and what follows.

The step of a rank is head (weights gathered), its micro-batches in the order of the schedule, and tail (gradients
reduced, the optimizer, weights gathered again). What plans share, local programs and prices, is worked out once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from .annotate import work as work_of
from .graph.dtype import bits
from .graph.graph import Block, Graph, Parameter
from .graph.op import Op
from .graph.plan import Plan
from .graph.price import Price
from .graph.runtime import Runtime
from .graph.system import System
from .graph.work import Work
from .local_program import Bind, How, LocalProgram, local_program
from .partition.fully_sharded import Sharding, fully_sharded
from .partition.replicas import mirror, sharding
from .partition.stages import Chunk, chunks_of
from .price import Pricer
from .rewrite import precision as precisions
from .schedule import memory
from .schedule.pipeline import Pipeline, StageCost, step_time
from .schedule.pipeline_order import in_flight
from .schedule.streams import Spent, micro_batch
from .step_ends import Ends, RankCost, merged

Priced = tuple[float, Op, Work, Price]  # how often on one device in a step, on average over the pipeline


@dataclass(frozen=True, slots=True)
class ChunkCost:
    """One virtual stage on one rank, for one micro-batch.

    saved    bytes that wait for its backward
    weight   bytes that the part of backward that makes parameters' gradients reads, where it is put off
    """

    graph: Graph
    works: tuple[tuple[Work, ...], ...]
    prices: tuple[tuple[Price, ...], ...]
    spent: dict[str, Spent]
    peak: memory.Peak
    saved: memory.Saved
    weight: int = 0


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
    system: System
    runtime: Runtime
    how: How

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
    ends: Ends = field(init=False)
    _locals: dict[Plan, LocalProgram] = field(default_factory=dict)
    _rows: dict[int, tuple[Block, tuple[Work, ...], tuple[Price, ...]]] = field(default_factory=dict)
    _chunks_of: dict[tuple[object, ...], tuple[Chunk, ...]] = field(default_factory=dict)
    _merged: dict[int, tuple[Parameter, ...]] = field(default_factory=dict)
    _chunks: dict[tuple[object, ...], ChunkCost] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.pricer = Pricer(self.system, self.runtime)
        self.ends = Ends(self.pricer, self.system, self.runtime, self.how.optimizer, self.to)

    @property
    def to(self) -> precisions.Precision:
        return precisions.precision(self.how.precision)

    def step(self, plan: Plan) -> Step:
        """The step under a resolved plan, as the runtime runs it. Raises TorchperfError where it is not legal."""
        plan = self.runtime.training.runs(plan)
        local = self._local(plan)
        chunks = self._split(local, plan)
        costs = tuple(self._chunk(local, chunk, plan) for chunk in chunks)
        rank_of = rank_chunks(plan)
        ranks = self._ranks_of(plan, local, rank_of, chunks, costs)
        training = self.runtime.training
        stages = self._stages(plan, rank_of, chunks, costs)
        tails = tuple(r.exposed + r.slowed + r.optimizer + r.offload for r in ranks)
        pipeline = Pipeline(
            stages, plan.micro_batches, plan.schedule if plan.pp > 1 else "1f1b", "p2p" in training.overlap,
            tuple(r.head for r in ranks), tails,
        )  # fmt: skip
        time = step_time(pipeline)
        return Step(
            plan, local, chunks, costs, ranks, pipeline, time.seconds, time.busy, rank_of, self.system, self.runtime,
            self.how,
        )  # fmt: skip

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
            self._merged[key] = merged(own, local.experts, local.summed)
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
        how = self._sharding(local, plan)
        key = (id(local), tuple(s.block for s in chunk.graph.segments), how)
        if key not in self._chunks:
            graph = fully_sharded(chunk.graph, how) if how else chunk.graph
            rows = [self._block(block) for block in graph.blocks]
            works, prices = tuple(r[0] for r in rows), tuple(r[1] for r in rows)
            spent = micro_batch(graph, prices, self.runtime, self.system.accelerator.architecture)
            alive = memory.lives(graph, works)
            cost = ChunkCost(
                graph, works, prices, spent, memory.peak_of(graph, alive), memory.saved_bytes(graph, alive),
                memory.weight_bytes(graph, alive),
            )  # fmt: skip
            self._chunks[key] = cost
        return self._chunks[key]

    def _sharding(self, local: LocalProgram, plan: Plan) -> Sharding | None:
        return sharding(plan, local.experts, bits(self.to.gather) if self.to.gather else 0)

    def _stages(
        self, plan: Plan, rank_of: Sequence[Sequence[int]], chunks: Sequence[Chunk], costs: Sequence[ChunkCost]
    ) -> tuple[tuple[StageCost, ...], ...]:
        """The chunks of each rank for the schedule; chunks alike are worked out once."""
        known: dict[tuple[int, ...], StageCost] = {}
        for chunk, cost in zip(chunks, costs, strict=True):
            key = _alike(chunk, cost)
            if key not in known:
                known[key] = self._cost(plan, chunk, cost)
        return tuple(tuple(known[_alike(chunks[c], costs[c])] for c in own) for own in rank_of)

    def _cost(self, plan: Plan, chunk: Chunk, cost: ChunkCost) -> StageCost:
        """The chunk for the schedule."""
        forward, backward = cost.spent.get("forward", Spent()), cost.spent.get("backward", Spent())
        again = cost.spent.get("recompute", Spent())
        stall = self.runtime.training.layer_overhead
        host = len(chunk.layers) * stall.value if stall else 0.0
        return StageCost(
            forward.elapsed + host, backward.elapsed - backward.apart + host, backward.apart, again.elapsed,
            self.ends.send(plan, max(chunk.sends, chunk.returns)),
        )  # fmt: skip

    def _ranks_of(
        self, plan: Plan, local: LocalProgram, rank_of: Sequence[Sequence[int]], chunks: Sequence[Chunk],
        costs: Sequence[ChunkCost],
    ) -> tuple[RankCost, ...]:  # fmt: skip
        """Once a step, of every pipeline rank; ranks alike are worked out once."""
        known: dict[tuple[object, ...], RankCost] = {}
        found = []
        for rank, own in enumerate(rank_of):
            copies = mirror(plan, rank)
            parameters = tuple(p for c in own for p in self._parameters(local, chunks[c]))
            names = (local.experts, local.summed)
            alike = ((p.numel, p.dtype, p.trained, len(p.names), *(p.names[0] in n for n in names)) for p in parameters)
            key = (copies, *(id(costs[c]) for c in own), *alike)
            if key not in known:
                if local.graph.facts.mode == "train":
                    known[key] = self.ends.rank(plan, parameters, local, [costs[c].spent for c in own], copies)
                else:
                    moved = self.ends.offload(plan, parameters, local.experts, train=False)
                    known[key] = RankCost(parameters, (), 0.0, 0.0, 0.0, 0.0, moved)
            found.append(known[key])
        return tuple(found)


def _alike(chunk: Chunk, cost: ChunkCost) -> tuple[int, ...]:
    """The same for chunks that cost the same in a schedule."""
    return (id(cost), len(chunk.layers), max(chunk.sends, chunk.returns))


@dataclass(frozen=True, slots=True)
class Moment:
    """The worst moment of a rank, by its chunks.

    held      micro-batches whose activations are held whole, of each chunk
    delayed   micro-batches of which only what weight gradients read is still held
    running   the chunk at work
    """

    held: tuple[int, ...]
    delayed: tuple[int, ...]
    running: int

    @property
    def waiting(self) -> tuple[int, ...]:
        """Of those held whole, the ones between their forward and their backward."""
        return tuple(n - (i == self.running) for i, n in enumerate(self.held))


def worst(step: Step, rank: int) -> Moment:
    """What a rank holds at its worst moment."""
    plan, costs = step.plan, [step.costs[c] for c in step.rank_of[rank]]
    held, delayed = (1,) * len(costs), (0,) * len(costs)
    if step.local.graph.facts.mode == "train":
        schedule = plan.schedule if plan.pp > 1 else "1f1b"
        nbytes, part = tuple(float(c.saved.nbytes) for c in costs), tuple(float(c.weight) for c in costs)
        found = in_flight(schedule, rank, plan.pp, plan.micro_batches, len(costs), nbytes, part)
        held, delayed = found.forward, found.weight
    running = max(range(len(costs)), key=lambda i: costs[i].peak.nbytes - costs[i].saved.nbytes if held[i] else -1)
    return Moment(held, delayed, running)


def rank_chunks(plan: Plan) -> tuple[tuple[int, ...], ...]:
    """The chunks of each rank: rank, rank + pp, ...; under DualPipe one of each direction."""
    if plan.schedule == "dualpipe" and plan.pp > 1:
        return tuple((r, plan.pp - 1 - r) for r in range(plan.pp))
    return tuple(tuple(range(r, plan.pp * plan.virtual_stages, plan.pp)) for r in range(plan.pp))
