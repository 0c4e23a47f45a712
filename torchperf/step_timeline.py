"""A priced step -> when what ran where: the pipeline's actions, and the collectives of every rank beside them.

Each axis has a stream of its own on each rank: `tp`, `cp`, `ep` and `dp` inside a micro-batch, taken from the walk that
priced its chunk; `dp gradients` and `dp weights` for what joins replicas once a step; `tp model`, `pp model`, ...
for norms, tied weights and gradients that were put off.

Rules   a collective that outlasts its forward goes on at the start of its backward, with which it was priced
        a backward in two parts is drawn as if what only makes weights' gradients came last
        of gradients, what no backward hides lies in the tail, where it is counted
        above DETAIL collectives those of a stream and action are one event, from the first's start to the last's end
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from .graph.timeline import COMPUTE, Span, Timeline
from .schedule.events import simulate
from .schedule.streams import Event, Run, Spent, micro_batch
from .step import ChunkCost, Step
from .step_ends import Call, RankCost

DETAIL = 100_000  # collectives; a trace of them has about 13 MB
FORWARD = ("F",)
BACKWARD = ("B", "W", "BW")

Piece = tuple[float, float, float]  # of a stretch of work: its start there, its length, its start in the step


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Collectives of one micro-batch, in seconds from the start of its forward and of its backward."""

    forward: tuple[Event, ...]
    backward: tuple[Event, ...]
    spent: dict[str, Spent]

    def seconds(self, *phases: str) -> float:
        return sum(self.spent[phase].elapsed for phase in phases if phase in self.spent)

    @property
    def weight(self) -> float:
        """Seconds of the part of a backward that makes weights' gradients, as the schedule takes it."""
        return self.spent.get("backward", Spent()).apart


def timeline(step: Step, detail: int = DETAIL) -> Timeline:
    """Every action, transfer and collective of a step; with more collectives than `detail` those alike as one."""
    played = simulate(step.pipeline)
    known = {id(cost): cost for cost in step.costs}
    chunks = {key: _chunk(cost, step) for key, cost in known.items()}
    calls = [rank.calls for rank in step.ranks]
    count = sum(map(len, calls)) + step.pipeline.per_chunk * sum(
        len(chunks[id(cost)].forward) + len(chunks[id(cost)].backward) for cost in step.costs
    )
    note = ""
    if count > detail:
        chunks = {key: _Chunk(_folded(c.forward), _folded(c.backward), c.spent) for key, c in chunks.items()}
        calls = [_folded_calls(own) for own in calls]
        note = f"{count} collectives: those of one stream and action are one event, from the first to the last"
    spans = list(played.spans)
    by_rank: list[list[Span]] = [[] for _ in range(played.ranks)]
    for span in played.spans:
        if span.stream == COMPUTE:
            by_rank[span.rank].append(span)
    for rank, (actions, own, cost, some) in enumerate(zip(by_rank, step.rank_of, step.ranks, calls, strict=True)):
        mine = [chunks[id(step.costs[c])] for c in own]
        for action in actions:
            if action.chunk >= 0:
                spans += _beside(action, mine[action.chunk])
        spans += _ends(rank, actions, mine, cost, some, step.plan.micro_batches)
    return Timeline(played.ranks, tuple(span for span in spans if span.end > span.start), note)


def _chunk(cost: ChunkCost, step: Step) -> _Chunk:
    """Walks the chunk once more and cuts its collectives between forward and backward."""
    runs: list[Run] = []
    micro_batch(cost.graph, cost.prices, step.runtime, step.system.accelerator.architecture, runs)
    stretches: list[tuple[bool, Piece]] = []
    at = {True: 0.0, False: 0.0}
    for run in runs:
        ahead, length = run.phase == "forward", run.end - run.start
        if stretches and stretches[-1][0] == ahead:
            start, known, to = stretches[-1][1]
            stretches[-1] = (ahead, (start, known + length, to))
        else:
            stretches.append((ahead, (run.start, length, at[ahead])))
        at[ahead] += length
    if stretches:  # the last collectives
        ahead, (start, _, to) = stretches[-1]
        stretches[-1] = (ahead, (start, float("inf"), to))
    found: dict[bool, list[Event]] = {True: [], False: []}
    for run in runs:
        for e in run.events:
            for ahead, piece in stretches:
                for start, end in _cut(run.start + e.start, run.start + e.end, (piece,)):
                    found[ahead].append(e._replace(start=start, end=end))
    return _Chunk(tuple(found[True]), tuple(found[False]), cost.spent)


def _cut(start: float, end: float, pieces: Iterable[Piece]) -> Iterator[tuple[float, float]]:
    """Where the parts of a stretch from `start` to `end` lie in the step."""
    for begin, length, to in pieces:
        first, last = max(start, begin), min(end, begin + length)
        if first < last:
            yield to + first - begin, to + last - begin


def _beside(action: Span, chunk: _Chunk) -> Iterator[Span]:
    """The collectives of an action. What the host adds to a layer is spread evenly over it."""
    events = chunk.forward if action.kind in FORWARD else chunk.backward
    first = chunk.seconds("recompute", "backward") - chunk.weight
    begin = first if action.kind == "W" else 0.0
    length = {"F": chunk.seconds("forward"), "B": first, "W": chunk.weight}.get(action.kind, first + chunk.weight)
    stall = (action.seconds - length) / length if length else 0.0
    for e in events:
        for start, end in _cut(e.start, e.end, ((begin, length, 0.0),)):
            moved = action.start + start * (1 + stall)
            until = min(moved + end - start, action.end)
            yield Span(action.rank, e.axis, _word(e.name), action.micro_batch, action.chunk, moved, until)


def _ends(
    rank: int, actions: Sequence[Span], chunks: Sequence[_Chunk], cost: RankCost, calls: Iterable[Call], count: int
) -> Iterator[Span]:
    """What joins replicas and the ranks of the model: beside actions, before the first and after the last."""
    head = next((s.end for s in actions if s.kind == "head"), 0.0)
    tail = next((s.start for s in actions if s.kind == "tail"), 0.0)
    by_kind: dict[tuple[str, int], list[Span]] = {}
    for span in actions:
        by_kind.setdefault((span.kind, span.chunk), []).append(span)
    window = sum(chunk.seconds("backward") for chunk in chunks)
    opening = [(-cost.head, cost.head, head - cost.head), *_pieces(by_kind, chunks, FORWARD, 0)]
    windows: dict[int, list[Piece]] = {}
    spilled = 0.0  # seconds of the tail that those before take
    for call in calls:
        stream = f"{call.axis} {call.when}"
        if call.when == "gradients":
            if call.micro_batch not in windows:
                own = _pieces(by_kind, chunks, BACKWARD, call.micro_batch - 1)
                windows[call.micro_batch] = [*own, (window, float("inf"), tail + spilled)]
            spilled += max(0.0, call.end - max(call.start, window))
            pieces = windows[call.micro_batch]
        elif call.when == "weights":
            pieces = opening
        else:
            pieces = [(0.0, float("inf"), tail + cost.exposed + cost.slowed)]
        j = count - 1 + call.micro_batch if call.when == "gradients" else -1
        for start, end in _cut(call.start, call.end, pieces):
            yield Span(rank, stream, _word(call.name), j, -1, start, end)


def _pieces(
    actions: dict[tuple[str, int], list[Span]], chunks: Sequence[_Chunk], kinds: Sequence[str], which: int
) -> list[Piece]:
    """The forward, or the backward without what it recomputes, of the `which`th micro-batch through each chunk."""
    found: list[tuple[float, float]] = []  # start and length in the step
    for c, chunk in enumerate(chunks):
        for kind in kinds:
            own = actions.get((kind, c), [])
            if -len(own) <= which < len(own):
                span, backward = own[which], chunk.seconds("backward")
                length = {
                    "F": chunk.seconds("forward"), "BW": backward, "W": chunk.weight, "B": backward - chunk.weight,
                }[kind]  # fmt: skip
                found.append((span.start if kind == "F" else span.end - length, length))
    pieces, at = list[Piece](), 0.0
    for start, length in sorted(found):
        pieces.append((at, length, start))
        at += length
    return pieces


def _folded(events: Sequence[Event]) -> tuple[Event, ...]:
    """One event a stream."""
    found: dict[str, list[Event]] = {}
    for e in events:
        found.setdefault(e.axis, []).append(e)
    return tuple(
        Event(axis, _names([e.name for e in own]), min(e.start for e in own), max(e.end for e in own))
        for axis, own in found.items()
    )


def _folded_calls(calls: Sequence[Call]) -> tuple[Call, ...]:
    found: dict[tuple[str, str, int], list[Call]] = {}
    for c in calls:
        found.setdefault((c.when, c.axis, c.micro_batch), []).append(c)
    return tuple(
        own[0]._replace(
            name=_names([c.name for c in own]), start=min(c.start for c in own), end=max(c.end for c in own)
        )
        for own in found.values()
    )


def _names(names: Sequence[str]) -> str:
    return ", ".join(f"{times} {_word(name)}" for name, times in Counter(names).items())


def _word(name: str) -> str:
    return name.removeprefix("torchperf.")
