"""A trace: the structure that Chrome and Perfetto read, and the same times as the timeline."""

from __future__ import annotations

import itertools
import json
from collections import defaultdict

import pytest

from torchperf.graph.timeline import COMPUTE, Span, Timeline
from torchperf.report.trace import trace
from torchperf.schedule.events import simulate
from torchperf.schedule.pipeline import Pipeline, StageCost


@pytest.fixture(params=[("1f1b", 1, True), ("zb-h1", 1, False), ("interleaved", 2, True), ("dualpipe", 2, True)])
def timeline(request: pytest.FixtureRequest) -> Timeline:
    """A step of 4 ranks, with transfers longer than a forward, a head and tails."""
    name, chunks, overlap = request.param
    cost = StageCost(0.01, 0.012, 0.009, 0.002, send=0.013)
    return simulate(Pipeline(((cost,) * chunks,) * 4, 12, name, overlap, (0.001,) * 4, (0.02, 0.01, 0.0, 0.03)))


def test_events_have_what_the_format_asks(timeline: Timeline) -> None:
    read = json.loads(json.dumps(trace(timeline), allow_nan=False))
    named = {(e["pid"], e["tid"]): e["args"]["name"] for e in read["traceEvents"] if e["name"] == "thread_name"}
    ranks = {e["pid"]: e["args"]["name"] for e in read["traceEvents"] if e["name"] == "process_name"}
    assert ranks == {rank: f"rank {rank}" for rank in range(4)}
    assert {named[rank, 0] for rank in range(4)} == {COMPUTE}
    for event in read["traceEvents"]:
        assert event["ph"] in ("X", "M")
        if event["ph"] == "X":
            assert event["ts"] >= 0.0
            assert event["dur"] > 0.0
            assert (event["pid"], event["tid"]) in named


def test_spans_of_a_thread_do_not_overlap_and_sum_to_the_timeline(timeline: Timeline) -> None:
    threads = defaultdict(list)
    for event in trace(timeline)["traceEvents"]:
        if event["ph"] == "X":
            threads[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for spans in threads.values():
        spans.sort()
        assert all(a[1] <= b[0] + 1e-6 for a, b in itertools.pairwise(spans))
    busy = [sum(end - start for start, end in threads[rank, 0]) / 1e6 for rank in range(4)]
    assert busy == pytest.approx(timeline.busy())
    assert max(end for spans in threads.values() for _, end in spans) == pytest.approx(timeline.seconds * 1e6)


def test_a_span_reads_as_a_word_and_a_number() -> None:
    spans = (Span(0, COMPUTE, "BW", 3, 1, 0.5, 0.75), Span(0, "to rank 1", "send", 3, 1, 0.75, 1.0))
    events = [e for e in trace(Timeline(1, spans))["traceEvents"] if e["ph"] == "X"]
    assert events[0] == {
        "ph": "X", "name": "backward 3", "cat": "BW", "pid": 0, "tid": 0, "ts": 5e5, "dur": 2.5e5,
        "args": {"micro_batch": 3, "chunk": 1},
    }  # fmt: skip
    assert (events[1]["name"], events[1]["tid"]) == ("send 3", 1)


def test_each_stream_of_a_rank_has_a_row_and_a_note_is_kept() -> None:
    spans = (
        Span(0, COMPUTE, "F", 0, 0, 0.0, 2.0), Span(0, "tp", "all_reduce", 0, 0, 0.5, 1.0),
        Span(0, "dp gradients", "reduce_scatter", 0, -1, 1.0, 2.5),
    )  # fmt: skip
    found = trace(Timeline(1, spans, "folded"))
    rows = {e["args"]["name"]: e["tid"] for e in found["traceEvents"] if e["name"] == "thread_name"}
    assert rows == {COMPUTE: 0, "tp": 1, "dp gradients": 2}
    assert [e["name"] for e in found["traceEvents"] if e["ph"] == "X"] == [
        "forward 0",
        "all_reduce 0",
        "reduce_scatter 0",
    ]
    assert found["otherData"] == {"note": "folded"}
    assert "otherData" not in trace(Timeline(1, spans))
