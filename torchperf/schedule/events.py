"""A pipeline played action by action: the slow twin of `pipeline.step_time`, and what a trace is drawn from."""

from __future__ import annotations

import heapq
import itertools
from dataclasses import dataclass, field

from ..graph.errors import TorchperfError
from ..graph.timeline import COMPUTE, Span, Timeline
from .pipeline import Pipeline
from .pipeline_action import Action
from .pipeline_order import order, schedule_of

Key = tuple[str, int, int, int]  # direction F or B, micro-batch, rank, chunk that needs it


@dataclass(slots=True)
class _Play:
    """The state of a pipeline that runs: what is done, what is under way, who waits."""

    pipeline: Pipeline
    orders: list[list[Action]]
    before: dict[tuple[int, int], tuple[int, int]]
    after: dict[tuple[int, int], tuple[int, int]]
    at: list[int]
    computed: list[float]  # when the rank's last action ended
    free: list[float]  # and when it is free again, of its transfer too
    sent: dict[Key, tuple[float, float, float]] = field(default_factory=dict)  # made, arrived, seconds under way
    done: set[tuple[str, int, int, int]] = field(default_factory=set)
    link: dict[tuple[int, int], float] = field(default_factory=dict)
    spans: list[Span] = field(default_factory=list)

    def needs(self, rank: int) -> Key | None:
        """What the next action of a rank waits for from another stage, if anything."""
        kind, j, chunk = self.orders[rank][self.at[rank]]
        if kind == "W":
            return None
        source = (self.before if kind == "F" else self.after).get((rank, chunk))
        return (kind[0], j, rank, chunk) if source is not None else None

    def start(self, rank: int) -> float | None:
        """When the next action of a rank can start; None where what it needs is not made yet."""
        need = self.needs(rank)
        if need is None:
            return self.free[rank]
        if need not in self.sent:
            return None
        made, arrived, seconds = self.sent[need]
        if self.pipeline.overlap_p2p:
            return max(self.free[rank], arrived)
        return max(self.free[rank], max(self.computed[rank], made) + seconds)

    def run(self, rank: int, start: float) -> Key | None:
        """Run the next action of a rank; what it makes for another stage, if anything."""
        kind, j, chunk = self.orders[rank][self.at[rank]]
        self._check_own(kind, j, rank, chunk)
        end = start + self.pipeline.stages[rank][chunk].seconds(kind)
        self.spans.append(Span(rank, COMPUTE, kind, j, chunk, start, end))
        self.at[rank] += 1
        self.computed[rank] = self.free[rank] = end
        target = None if kind == "W" else (self.after if kind == "F" else self.before).get((rank, chunk))
        if target is None:
            return None
        sender = self.pipeline.stages[rank][chunk] if kind == "F" else self.pipeline.stages[target[0]][target[1]]
        seconds = 0.0 if target[0] == rank else sender.send
        made: Key = (kind[0], j, *target)
        self.sent[made] = (end, self._send(rank, target[0], j, chunk, end, seconds), seconds)
        return made

    def _send(self, rank: int, to: int, j: int, chunk: int, end: float, seconds: float) -> float:
        """When a transfer arrives; without overlap the rank is not free until then."""
        if seconds == 0.0:
            return end
        begin = max(end, self.link.get((rank, to), 0.0))
        self.link[rank, to] = begin + seconds
        self.spans.append(Span(rank, f"to rank {to}", "send", j, chunk, begin, begin + seconds))
        if not self.pipeline.overlap_p2p:
            self.free[rank] = begin + seconds
        return begin + seconds

    def _check_own(self, kind: str, j: int, rank: int, chunk: int) -> None:
        """A backward follows its own forward on the same rank; the weights' part its own backward."""
        first = {"B": "F", "BW": "F", "W": "B"}.get(kind)
        if (kind, j, rank, chunk) in self.done or (first and (first, j, rank, chunk) not in self.done):
            raise TorchperfError(
                f"the schedule `{self.pipeline.schedule}` runs {kind} of micro-batch {j} out of order",
                facts=[("rank", str(rank)), ("chunk", str(chunk))],
            )
        self.done.add((kind, j, rank, chunk))


def simulate(pipeline: Pipeline, orders: list[list[Action]] | None = None) -> Timeline:
    """Every action and transfer of a step; `orders` of the ranks in place of the schedule's own.

    Raises TorchperfError where ranks wait for each other, or an order does an action twice or too early.
    """
    ranks = pipeline.ranks
    if orders is None:
        orders = [order(pipeline.schedule, r, ranks, pipeline.micro_batches, pipeline.chunks) for r in range(ranks)]
    steps = [pair for route in schedule_of(pipeline.schedule).routes(ranks, pipeline.chunks) for pair in _pairs(route)]
    begin = [pipeline.begin(r) for r in range(ranks)]
    after, before = dict(steps), {b: a for a, b in steps}
    play = _Play(pipeline, orders, before, after, [0] * ranks, begin, list(begin))
    play.spans += [Span(r, COMPUTE, "head", -1, -1, 0.0, begin[r]) for r in range(ranks) if begin[r]]
    queue: list[tuple[float, int]] = []
    waiting: dict[Key, int] = {}

    def enter(rank: int) -> None:
        if play.at[rank] < len(play.orders[rank]):
            start = play.start(rank)
            need = play.needs(rank)
            if start is not None:
                heapq.heappush(queue, (start, rank))
            elif need is not None:
                waiting[need] = rank

    for rank in range(ranks):
        enter(rank)
    while queue:
        start, rank = heapq.heappop(queue)
        made = play.run(rank, start)
        enter(rank)
        if made in waiting:
            enter(waiting.pop(made))
    if waiting:
        raise _deadlock(pipeline, waiting)
    for rank in range(ranks):
        if pipeline.finale(rank):
            start = play.free[rank]
            play.spans.append(Span(rank, COMPUTE, "tail", -1, -1, start, start + pipeline.finale(rank)))
    return Timeline(ranks, tuple(play.spans))


def _pairs(route: tuple[tuple[int, int], ...]) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    return list(itertools.pairwise(route))


def _deadlock(pipeline: Pipeline, waiting: dict[Key, int]) -> TorchperfError:
    stuck = sorted((rank, key) for key, rank in waiting.items())
    words = {"F": "the activation", "B": "the gradient"}
    return TorchperfError(
        f"the ranks of the schedule `{pipeline.schedule}` wait for each other",
        facts=[(f"rank {rank}", f"{words[key[0]]} of micro-batch {key[1]}, chunk {key[3]}") for rank, key in stuck[:4]],
    )
