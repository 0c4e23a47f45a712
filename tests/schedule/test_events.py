"""A pipeline played action by action: order, dependencies, transfers, and ranks that wait for each other."""

from __future__ import annotations

import itertools

import pytest

from torchperf.graph.errors import TorchperfError
from torchperf.graph.timeline import COMPUTE, Span, Timeline
from torchperf.schedule.events import simulate
from torchperf.schedule.pipeline import Pipeline, StageCost
from torchperf.schedule.pipeline_action import Action
from torchperf.schedule.pipeline_order import SCHEDULES, order

CASES = [("gpipe", 4, 6, 1), ("1f1b", 4, 6, 1), ("interleaved", 3, 6, 2), ("zb-h1", 4, 7, 1), ("dualpipe", 4, 10, 2)]


def _pipeline(name: str, ranks: int, micro_batches: int, chunks: int, overlap: bool = True) -> Pipeline:
    rows = [[StageCost(1.0 + r / 8, 1.0 + c / 4, 0.75, 0.25, 0.125) for c in range(chunks)] for r in range(ranks)]
    return Pipeline(tuple(map(tuple, rows)), micro_batches, name, overlap)


def _compute(timeline: Timeline) -> dict[tuple[str, int, int, int], Span]:
    """Spans by direction (B is the end of a whole backward too), micro-batch, rank and chunk."""
    spans = [span for span in timeline.spans if span.stream == COMPUTE]
    return {(s.kind[0], s.micro_batch, s.rank, s.chunk): s for s in spans}


@pytest.mark.parametrize(("name", "ranks", "micro_batches", "chunks"), CASES)
@pytest.mark.parametrize("overlap", [True, False])
def test_each_action_follows_its_order_and_what_it_needs(
    name: str, ranks: int, micro_batches: int, chunks: int, overlap: bool
) -> None:
    pipeline = _pipeline(name, ranks, micro_batches, chunks, overlap)
    timeline = simulate(pipeline)
    found = _compute(timeline)
    for route in SCHEDULES[name].routes(ranks, chunks):
        for (rank, chunk), (other, behind) in itertools.pairwise(route):
            send = pipeline.stages[rank][chunk].send
            for j in {key[1] for key in found if key[2:] == (rank, chunk)}:
                assert found["F", j, other, behind].start >= found["F", j, rank, chunk].end + send - 1e-9
                assert found["B", j, rank, chunk].start >= found["B", j, other, behind].end + send - 1e-9
    for rank in range(ranks):
        mine = [s for s in timeline.spans if s.rank == rank and s.stream == COMPUTE]
        assert [Action(s.kind, s.micro_batch, s.chunk) for s in mine] == order(name, rank, ranks, micro_batches, chunks)
        assert all(a.end <= b.start + 1e-9 for a, b in itertools.pairwise(mine))


@pytest.mark.parametrize(("name", "ranks", "micro_batches", "chunks"), CASES)
def test_busy_is_the_work(name: str, ranks: int, micro_batches: int, chunks: int) -> None:
    pipeline = _pipeline(name, ranks, micro_batches, chunks)
    assert simulate(pipeline).busy() == pytest.approx([pipeline.work(r) for r in range(ranks)])


def test_two_ranks_by_hand() -> None:
    """F 1 s, B 2 s, 0.5 s a transfer: rank 1 starts at 1.5, its backward ends at 4.5, that of rank 0 runs 5 to 7."""
    cost = StageCost(1.0, 1.0, 1.0, send=0.5)
    found = _compute(simulate(Pipeline(((cost,), (cost,)), 1)))
    assert (found["F", 0, 1, 0].start, found["B", 0, 1, 0].end) == (1.5, 4.5)
    assert (found["B", 0, 0, 0].start, found["B", 0, 0, 0].end) == (5.0, 7.0)


def test_transfers_queue_or_stop_the_compute() -> None:
    """Two forwards of 1 s whose transfers take 3 s: overlapped, the second leaves at 4; else it is computed at 4."""
    cost = StageCost(1.0, 1.0, 1.0, send=3.0)
    overlapped = simulate(Pipeline(((cost,), (cost,)), 2, "gpipe"))
    sends = [s for s in overlapped.spans if s.kind == "send" and s.rank == 0]
    assert [(s.start, s.end) for s in sends] == [(1.0, 4.0), (4.0, 7.0)]
    found = _compute(simulate(Pipeline(((cost,), (cost,)), 2, "gpipe", overlap_p2p=False)))
    assert found["F", 1, 0, 0].start == 4.0


def test_ranks_that_wait_for_each_other() -> None:
    """The last rank wants the second micro-batch first, the first rank a backward before it sends it."""
    cost = StageCost(1.0, 1.0, 1.0)
    first = [Action("F", 0, 0), Action("BW", 0, 0), Action("F", 1, 0), Action("BW", 1, 0)]
    last = [Action("F", 1, 0), Action("BW", 1, 0), Action("F", 0, 0), Action("BW", 0, 0)]
    with pytest.raises(TorchperfError, match="wait for each other") as failure:
        simulate(Pipeline(((cost,), (cost,)), 2), [first, last])
    assert ("rank 0", "the gradient of micro-batch 0, chunk 0") in failure.value.facts
    assert ("rank 1", "the activation of micro-batch 1, chunk 0") in failure.value.facts


def test_an_order_that_does_an_action_too_early() -> None:
    pipeline = Pipeline(((StageCost(1.0, 1.0, 1.0),),), 1)
    with pytest.raises(TorchperfError, match="runs BW of micro-batch 0 out of order"):
        simulate(pipeline, [[Action("BW", 0, 0), Action("F", 0, 0)]])


def test_head_and_tail_are_spans() -> None:
    pipeline = Pipeline(((StageCost(1.0, 1.0, 1.0),),), 1, head=(0.5,), tail=(2.0,))
    spans = simulate(pipeline).spans
    assert [(s.kind, s.start, s.end) for s in spans] == [
        ("head", 0.0, 0.5), ("F", 0.5, 1.5), ("BW", 1.5, 3.5), ("tail", 3.5, 5.5),
    ]  # fmt: skip
