"""The time of a pipeline: what each chunk costs, in which order the micro-batches run, and when the last rank ends.

    start of an action = max(its rank is free, what it needs has arrived)      end = start + seconds

is a longest path in a graph, walked level by level (pipeline_time.py). In the steady state the graph repeats itself:
where the ends of one repetition are those of the last plus a constant, the rest of the micro-batches add that constant.
`events.simulate` is the slow twin. Of equal chunks without transfers the closed form of the schedule says the same.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from ..graph.errors import TorchperfError
from .pipeline_flow import Stage, gpipe_finish
from .pipeline_order import order, schedule_of
from .pipeline_time import Costs, finish


@dataclass(frozen=True, slots=True)
class StageCost:
    """Seconds of one micro-batch on one chunk of one rank. A whole backward is recompute + input + weight.

    send   to pass its activation on to the next stage, and the gradient back over the same boundary
    """

    forward: float
    backward_input: float
    backward_weight: float
    recompute: float = 0.0
    send: float = 0.0

    def __post_init__(self) -> None:
        for name in ("forward", "backward_input", "backward_weight", "recompute", "send"):
            _check_seconds(name, getattr(self, name))

    @property
    def backward(self) -> float:
        """Seconds of the whole backward."""
        return self.recompute + self.backward_input + self.backward_weight

    @property
    def compute(self) -> float:
        """Seconds of forward and backward."""
        return self.forward + self.backward

    def seconds(self, kind: str) -> float:
        """Seconds of an action: F, B, W or BW."""
        if kind == "F":
            return self.forward
        if kind == "W":
            return self.backward_weight
        return self.backward if kind == "BW" else self.recompute + self.backward_input


@dataclass(frozen=True, slots=True)
class Pipeline:
    """One step of a pipeline.

    stages       [rank][chunk]
    overlap_p2p  whether compute goes on during a transfer: then those from one rank to another go one after the
                 other; if not, sender and receiver stand still for it, what a rank sends and then receives at once
    head, tail   seconds of each rank before its first forward and after its last backward; () for none
    """

    stages: tuple[tuple[StageCost, ...], ...]
    micro_batches: int
    schedule: str = "1f1b"
    overlap_p2p: bool = True
    head: tuple[float, ...] = ()
    tail: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if not self.stages or len({len(rank) for rank in self.stages}) != 1:
            raise TorchperfError(
                "a pipeline needs ranks with the same number of chunks",
                facts=[("chunks of each rank", ", ".join(str(len(rank)) for rank in self.stages) or "none")],
            )
        for name, seconds in (("head", self.head), ("tail", self.tail)):
            if seconds and len(seconds) != self.ranks:
                raise TorchperfError(f"`{name}` has {len(seconds)} values for {self.ranks} ranks")
            for value in seconds:
                _check_seconds(name, value)
        _check_order(self.schedule, self.ranks, self.micro_batches, self.chunks)

    @property
    def ranks(self) -> int:
        return len(self.stages)

    @property
    def chunks(self) -> int:
        return len(self.stages[0])

    @property
    def per_chunk(self) -> int:
        """Micro-batches that run through one chunk of a rank."""
        return self.micro_batches // len(schedule_of(self.schedule).routes(self.ranks, self.chunks))

    def work(self, rank: int) -> float:
        """Seconds that a rank computes in the step, without head and tail."""
        return self.per_chunk * sum(cost.compute for cost in self.stages[rank])

    def begin(self, rank: int) -> float:
        """Seconds before a rank's first forward."""
        return self.head[rank] if self.head else 0.0

    def finale(self, rank: int) -> float:
        """Seconds after a rank's last backward."""
        return self.tail[rank] if self.tail else 0.0


@dataclass(frozen=True, slots=True)
class PipelineTime:
    """Seconds of a step.

    busy            of each rank: head, compute and tail
    bubble_seconds  the step less the busiest rank's busy: what no balancing of micro-batches would need
    """

    seconds: float
    bubble_seconds: float
    busy: tuple[float, ...]


def step_time(pipeline: Pipeline) -> PipelineTime:
    """The time of a step, as `events.simulate` finds it, in a time that hardly grows with the micro-batches."""
    busy = tuple(pipeline.begin(r) + pipeline.work(r) + pipeline.finale(r) for r in range(pipeline.ranks))
    seconds = _closed(pipeline)
    if seconds is None:
        seconds = _walked(pipeline)
    return PipelineTime(seconds, max(seconds - max(busy), 0.0), busy)


def _closed(pipeline: Pipeline) -> float | None:
    """The closed form, where it is exact: equal chunks, no transfers, nothing before or after."""
    first = pipeline.stages[0][0]
    schedule = schedule_of(pipeline.schedule)
    equal = all(cost == first for rank in pipeline.stages for cost in rank)
    if not (schedule.exact and equal) or first.send or any(pipeline.head) or any(pipeline.tail):
        return None
    return pipeline.work(0) + schedule.bubble(pipeline.ranks, first.forward, first.backward, first.backward_weight)


def _walked(pipeline: Pipeline) -> float:
    """The longest path, for any seconds."""
    if pipeline.schedule == "gpipe":
        stages = [
            Stage(cost.forward, cost.backward, cost.send, pipeline.begin(r), pipeline.finale(r))
            for r, (cost,) in enumerate(pipeline.stages)
        ]
        return gpipe_finish(stages, pipeline.micro_batches, pipeline.overlap_p2p)
    ends = finish(pipeline.schedule, pipeline.micro_batches, _costs(pipeline))
    return max(end + pipeline.finale(r) for r, end in enumerate(ends))


def _costs(pipeline: Pipeline) -> Costs:
    seconds = [[tuple(map(cost.seconds, ("F", "B", "W", "BW"))) for cost in rank] for rank in pipeline.stages]
    return Costs(
        seconds=tuple(map(tuple, seconds)),
        send=tuple(tuple(cost.send for cost in rank) for rank in pipeline.stages),
        overlap=pipeline.overlap_p2p,
        head=tuple(map(pipeline.begin, range(pipeline.ranks))),
    )


@lru_cache(maxsize=1024)
def _check_order(schedule: str, ranks: int, micro_batches: int, chunks: int) -> None:
    """Raise TorchperfError where the schedule cannot run these numbers."""
    order(schedule, 0, ranks, micro_batches, chunks)


def _check_seconds(name: str, value: float) -> None:
    if not (math.isfinite(value) and value >= 0.0):
        raise TorchperfError(f"`{name}` of a pipeline is {value}: it must be a number of seconds, at least 0")
