"""The time of a pipeline: against its slow twin, the closed forms of the papers, and what must hold of any."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchperf.graph.errors import TorchperfError
from torchperf.schedule.events import simulate
from torchperf.schedule.pipeline import Pipeline, StageCost, step_time
from torchperf.schedule.pipeline_order import SCHEDULES

seconds = st.integers(1, 40).map(lambda n: n / 20)
sends = st.sampled_from([0.0, 0.01, 0.3, 4.0])
FEW = settings(max_examples=60, deadline=None)


@st.composite
def pipelines(draw: st.DrawFn, names: tuple[str, ...] = tuple(SCHEDULES)) -> Pipeline:
    """A pipeline with equal stages, another first and last one, or all different; with and without transfers."""
    name = draw(st.sampled_from(names))
    ranks = draw(st.integers(1, 5))
    chunks, micro_batches = 1, draw(st.sampled_from([1, 2, 5, 12, 31, 60]))
    if name == "interleaved":
        chunks, micro_batches = draw(st.integers(2, 3)), ranks * draw(st.sampled_from([1, 2, 3, 8]))
    if name == "dualpipe":
        ranks, chunks = 2 * draw(st.integers(1, 3)), 2
        micro_batches = 2 * ranks + 2 * draw(st.sampled_from([0, 1, 5, 20]))
    send = draw(sends)
    cost = st.builds(StageCost, seconds, seconds, seconds, st.sampled_from([0.0, 0.5]), st.just(send))
    inner = draw(cost)
    kind = draw(st.sampled_from(["equal", "ends", "all"]))
    stages = [[draw(cost) if kind == "all" else inner for _ in range(chunks)] for _ in range(ranks)]
    if kind == "ends":
        stages[0][0], stages[-1][-1] = draw(cost), draw(cost)
    around = st.lists(seconds, min_size=ranks, max_size=ranks).map(tuple) | st.just(())
    rows = tuple(tuple(row) for row in stages)
    return Pipeline(rows, micro_batches, name, draw(st.booleans()), draw(around), draw(around))


def _equal(name: str, ranks: int, micro_batches: int, cost: StageCost, chunks: int = 1) -> Pipeline:
    return Pipeline(((cost,) * chunks,) * ranks, micro_batches, name)


@FEW
@given(pipelines())
def test_fast_equals_slow_twin(pipeline: Pipeline) -> None:
    assert step_time(pipeline).seconds == pytest.approx(simulate(pipeline).seconds, rel=1e-9)


@pytest.mark.parametrize("name", sorted(SCHEDULES))
@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("send", [0.0, 0.05, 2.0])
def test_many_micro_batches_equal_slow_twin(name: str, overlap: bool, send: float) -> None:
    """So many that the steady state is continued and not walked."""
    chunks = {"interleaved": 3, "dualpipe": 2}.get(name, 1)
    inner = StageCost(1.0, 0.9, 0.8, 0.1, send)
    rows = [[inner] * chunks for _ in range(4)]
    rows[0][0], rows[-1][-1] = StageCost(1.1, 0.9, 0.85, 0.1, send), StageCost(1.4, 1.3, 1.1, 0.1, send)
    pipeline = Pipeline(tuple(map(tuple, rows)), 400, name, overlap, (), (0.5, 0.4, 0.3, 0.2))
    assert step_time(pipeline).seconds == pytest.approx(simulate(pipeline).seconds, rel=1e-9)


@pytest.mark.parametrize("name", sorted(SCHEDULES))
def test_steady_state_is_not_walked(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten times the micro-batches look at no more nodes of the graph."""
    from torchperf.schedule import pipeline_time

    walked: list[int] = []
    walk = pipeline_time.walk
    monkeypatch.setattr(
        pipeline_time, "walk", lambda graph, *rest: walked.append(graph.level.size) or walk(graph, *rest)
    )
    chunks = {"interleaved": 2, "dualpipe": 2}.get(name, 1)
    pipeline = replace(_equal(name, 4, 400, StageCost(1.0, 1.0, 0.9, 0.0, 0.01), chunks), tail=(0.1,) * 4)
    step_time(pipeline)
    first = sum(walked)
    step_time(replace(pipeline, micro_batches=4000))
    assert sum(walked) == 2 * first


@given(st.integers(1, 6), st.integers(1, 20), seconds, seconds, seconds)
def test_bubble_fraction_of_1f1b(ranks: int, micro_batches: int, f: float, b: float, w: float) -> None:
    """(p - 1) / m: Narayanan et al. 2021, section 2.2.1; GPipe takes as long."""
    pipeline = _equal("1f1b", ranks, micro_batches, StageCost(f, b, w))
    ideal = micro_batches * (f + b + w)
    time = simulate(pipeline).seconds
    assert (time - ideal) / ideal == pytest.approx((ranks - 1) / micro_batches, abs=1e-9)
    assert step_time(pipeline).bubble_seconds == pytest.approx(time - ideal, abs=1e-9)
    assert simulate(replace(pipeline, schedule="gpipe")).seconds == pytest.approx(time)


@given(st.integers(1, 5), st.integers(1, 4), st.integers(2, 4), seconds, seconds, seconds)
def test_bubble_fraction_of_interleaved(ranks: int, rounds: int, chunks: int, f: float, b: float, w: float) -> None:
    """(p - 1) / (v m): section 2.2.2."""
    pipeline = _equal("interleaved", ranks, ranks * rounds, StageCost(f, b, w), chunks)
    time, ideal = simulate(pipeline).seconds, pipeline.work(0)
    assert (time - ideal) / ideal == pytest.approx((ranks - 1) / (chunks * ranks * rounds), abs=1e-9)
    assert step_time(pipeline).seconds == pytest.approx(time)


@FEW
@given(st.integers(1, 6), st.integers(0, 20), seconds, seconds, seconds)
def test_bubble_of_zb_h1(ranks: int, more: int, f: float, b: float, w: float) -> None:
    """(p - 1) (f + b - w): Qi et al. 2023, table 2; the weights' part is no longer than the others."""
    w = min(f, b, w)
    pipeline = _equal("zb-h1", ranks, ranks + more, StageCost(f, b, w))
    assert step_time(pipeline).bubble_seconds == pytest.approx((ranks - 1) * (f + b - w), abs=1e-9)
    assert SCHEDULES["zb-h1"].bubble(ranks, f, b + w, w) == pytest.approx((ranks - 1) * (f + b - w))


@FEW
@given(st.integers(1, 4), st.integers(0, 10), seconds, seconds)
def test_bubble_of_dualpipe(half: int, more: int, f: float, w: float) -> None:
    """(p/2 - 1) (f + b - 2 w): the backward towards the input takes as long as the forward, the weights' no longer."""
    w = min(f, w)
    pipeline = _equal("dualpipe", 2 * half, 4 * half + 2 * more, StageCost(f, f, w), 2)
    bubble = SCHEDULES["dualpipe"].bubble(2 * half, f, f + w, w)
    assert step_time(pipeline).bubble_seconds == pytest.approx(bubble, abs=1e-9)
    assert bubble == pytest.approx((half - 1) * (2 * f - w))


@FEW
@given(pipelines(), st.sampled_from([0.01, 0.5]))
def test_slower_transfers_never_make_a_step_faster(pipeline: Pipeline, more: float) -> None:
    rows = tuple(tuple(replace(cost, send=cost.send + more) for cost in row) for row in pipeline.stages)
    before, after = step_time(pipeline).seconds, step_time(replace(pipeline, stages=rows)).seconds
    assert after >= before * (1 - 1e-9)


@FEW
@given(pipelines())
def test_overlap_never_makes_a_step_slower_and_no_rank_works_longer_than_the_step(pipeline: Pipeline) -> None:
    time = step_time(pipeline)
    assert max(time.busy) <= time.seconds * (1 + 1e-9)
    assert time.bubble_seconds == pytest.approx(time.seconds - max(time.busy), abs=1e-9)
    cost = [cost for row in pipeline.stages for cost in row]
    if max(c.send for c in cost) <= min(min(c.forward, c.backward_input) for c in cost):  # no transfer queues
        blocked = step_time(replace(pipeline, overlap_p2p=False)).seconds
        assert step_time(replace(pipeline, overlap_p2p=True)).seconds <= blocked * (1 + 1e-9)


def test_a_tail_of_a_late_stage_hides_in_the_cool_down() -> None:
    """The last rank ends its backward (p - 1) backwards before the first: a tail that long costs nothing."""
    pipeline = _equal("1f1b", 4, 16, StageCost(1.0, 1.0, 1.0))
    alone = step_time(pipeline).seconds
    assert step_time(replace(pipeline, tail=(0.0, 0.0, 0.0, 6.0))).seconds == pytest.approx(alone)
    assert step_time(replace(pipeline, tail=(0.0, 0.0, 0.0, 7.0))).seconds == pytest.approx(alone + 1.0)
    assert step_time(replace(pipeline, tail=(1.0,) * 4)).seconds == pytest.approx(alone + 1.0)
    assert step_time(replace(pipeline, head=(1.0,) * 4)).seconds == pytest.approx(alone + 1.0)


def test_what_a_pipeline_refuses() -> None:
    cost = StageCost(1.0, 1.0, 1.0)
    with pytest.raises(TorchperfError, match="`send` of a pipeline is -1"):
        StageCost(1.0, 1.0, 1.0, send=-1.0)
    with pytest.raises(TorchperfError, match="`forward` of a pipeline is nan"):
        StageCost(float("nan"), 1.0, 1.0)
    with pytest.raises(TorchperfError, match="the same number of chunks"):
        Pipeline(((cost,), (cost, cost)), 4)
    with pytest.raises(TorchperfError, match="`tail` has 1 values for 2 ranks"):
        Pipeline(((cost,), (cost,)), 4, tail=(1.0,))
    with pytest.raises(TorchperfError, match="groups of 2"):
        Pipeline(((cost, cost), (cost, cost)), 5, "interleaved")
