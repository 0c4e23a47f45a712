"""Seconds of one forward pass of an engine: the stages of its pipeline, kernel by kernel, and what the engine adds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from .graph.errors import TorchperfError
from .graph.graph import Graph
from .graph.op import Op
from .graph.price import Price, Prices
from .graph.runtime import Runtime
from .graph.work import Work, Works
from .schedule.streams import micro_batch

Priced = tuple[int, Op, Work, Price]  # how often in a pass


@dataclass(frozen=True, slots=True)
class Stage:
    """One pipeline stage of one rank, lowered: what it runs, and what no kernel of its own accounts for.

    layers    module paths
    added     (what, seconds): overheads a layer and a pass, sampling
    sends     bytes passed to the next stage; `hop` seconds for them
    """

    graph: Graph
    works: Works
    layers: tuple[str, ...]
    added: tuple[tuple[str, float], ...]
    sends: int
    hop: float


@dataclass(frozen=True, slots=True)
class StageCost:
    """Seconds of one pass of a stage; `attention` is the part of attention over the cache or the prompt."""

    stage: Stage
    prices: Prices
    works: Works
    seconds: float
    attention: float

    def rows(self) -> Iterator[Priced]:
        """Every kernel."""
        graph = self.stage.graph
        for count, block, works, prices in zip(graph.counts, graph.blocks, self.works, self.prices, strict=True):
            if count:
                for op, work, price in zip(block.ops, works, prices, strict=True):
                    yield count, op, work, price


@dataclass(frozen=True, slots=True)
class StepCost:
    """One forward pass over `sequences` of a micro-batch, `micro_batches` of which fill the pipeline.

    seconds     prefill: until the last micro-batch has left; decode: between two tokens of a sequence
    """

    mode: str
    stages: tuple[StageCost, ...]
    micro_batches: int

    @property
    def through(self) -> float:
        """Seconds of one micro-batch through all stages."""
        return sum(s.seconds + s.stage.hop for s in self.stages)

    @property
    def slowest(self) -> StageCost:
        return max(self.stages, key=lambda s: s.seconds)

    @property
    def seconds(self) -> float:
        if self.mode == "decode":
            return max(self.through, self.micro_batches * self.slowest.seconds)
        return self.through + (self.micro_batches - 1) * self.slowest.seconds

    @property
    def attention(self) -> float:
        """The part of `seconds` that attention takes."""
        total = sum(s.seconds for s in self.stages)
        return self.seconds * sum(s.attention for s in self.stages) / total if total else 0.0


def cost(stage: Stage, works: Works, price: Callable[[Op, Work], Price], runtime: Runtime) -> StageCost:
    """A stage with these works; `runtime` says what a launch costs."""
    blocks = stage.graph.blocks
    prices = tuple(
        tuple(price(op, work) for op, work in zip(block.ops, row, strict=True))
        for block, row in zip(blocks, works, strict=True)
    )
    spent = micro_batch(stage.graph, prices, runtime)
    attention = sum(
        count * p.seconds
        for count, row, found in zip(stage.graph.counts, works, prices, strict=True)
        for work, p in zip(row, found, strict=True)
        if work.kind == "attention"
    )
    seconds = sum(part.elapsed for part in spent.values()) + sum(s for _, s in stage.added)
    return StageCost(stage, prices, works, seconds, attention)


def between(low: Works, high: Works, at: int, start: int, end: int) -> Works:
    """Works at size `at` of programs that differ in one size, in a range where every count is linear in it.

    Raises TorchperfError where they are not the same ops.
    """
    if end == start:
        return low
    if [len(row) for row in low] != [len(row) for row in high]:
        raise TorchperfError(
            "the program of a decode step differs between two lengths of the cache",
            facts=[("lengths", f"{start} and {end}")],
            hint="give another `--tp`: the inferred split differs between them",
        )
    part, whole = at - start, end - start
    return tuple(
        tuple(a if a == b else _between(a, b, part, whole) for a, b in zip(one, other, strict=True))
        for one, other in zip(low, high, strict=True)
    )


def _between(a: Work, b: Work, part: int, whole: int) -> Work:
    def of(x: int, y: int) -> int:
        return x + (y - x) * part // whole

    return replace(
        a,
        flops=of(a.flops, b.flops),
        flops_noncausal=of(a.flops_noncausal, b.flops_noncausal),
        flops_executed=of(a.flops_executed, b.flops_executed),
        bytes_read=of(a.bytes_read, b.bytes_read),
        bytes_written=of(a.bytes_written, b.bytes_written),
        dims=tuple((name, of(x, y)) for (name, x), (_, y) in zip(a.dims, b.dims, strict=True)),
    )


def launches_of(runtime: Runtime, mode: str) -> Runtime:
    """The runtime as a pass of this mode meets it: a replayed graph has no launches."""
    if mode == "decode" and runtime.serving is not None and runtime.serving.cuda_graphs:
        return replace(runtime, launch=replace(runtime.launch, value=0.0))
    return runtime
