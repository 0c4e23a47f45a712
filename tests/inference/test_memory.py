"""What an engine keeps, and what that leaves for requests."""

from __future__ import annotations

import pytest

from torchperf.graph.dtype import nbytes
from torchperf.graph.inference import Request
from torchperf.inference import Load, room_of
from torchperf.inference_memory import Room, cache_of

GIB = 2**30


def room(engine, request: Request, **asked: object) -> Room:
    facts = engine.bind("decode", {"batch": 1, "kv": 2}).facts
    return room_of(engine, facts, request, Load(**asked))  # type: ignore[arg-type]


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_weights_are_shared_out(planner, tp: int) -> None:
    """All but norms and what stays whole: 4 layers of q, k, v, o and three of 4096 x 11264, embedding and head."""
    one, many = (room(planner("dense", tp=n), Request(100, 10)).of(0, 1, 110) for n in (1, tp))
    layer = 2 * (4096 * 4096 * 2 + 2 * 4096 * 1024 + 3 * 4096 * 11264)
    assert one.weights == 4 * layer + 2 * 2 * 32000 * 4096 + 2 * 9 * 4096
    assert one.weights / tp <= many.weights < one.weights / tp + 2 * 9 * 4096 + 2 * 32000 * 4096


def test_few_bits_leave_more_for_the_cache(planner) -> None:
    pools = [room(planner("dense", weights=w), Request(100, 10)).of(0, 1, 110).pool for w in ("bf16", "fp8", "int4")]
    assert pools == sorted(pools)
    whole, fp8 = (room(planner("dense", kv=kv), Request(1000, 24)).most(1024) for kv in ("bf16", "fp8"))
    assert fp8 == pytest.approx(2 * whole, abs=1)


def test_the_pool_of_a_budget(planner) -> None:
    """vLLM: share of the device less weights, activations and reserve; graphs lie in what the budget leaves."""
    engine = planner("dense")
    m = room(engine, Request(1000, 24), utilization=0.8).of(0, 1, 1024)
    assert m.pool == pytest.approx(0.8 * m.usable - m.weights - m.buffers - m.activations - m.reserve, abs=2)
    full = room(engine, Request(1000, 24), utilization=1.0).of(0, 1, 1024)
    assert full.pool == pytest.approx(full.usable - full.fixed, abs=2)


def test_the_pool_of_what_is_free(planner) -> None:
    """TensorRT-LLM: nine tenths of what the engine leaves."""
    m = room(planner("dense", runtime="tensorrt-llm"), Request(1000, 24)).of(0, 1, 1024)
    assert m.pool == pytest.approx(0.9 * (m.usable - m.fixed), abs=2)


def test_requests_and_context_meet_at_the_pool(planner) -> None:
    """The most requests fit, one more does not; the longest context fits, a block more does not."""
    engine = planner("dense")
    found = room(engine, Request(1000, 24), utilization=0.2)
    pool = found.of(0, 1, 1024).pool
    cache = cache_of(engine, found.lowered.facts)
    most, longest = found.most(1024), found.longest()
    assert cache.nbytes(most, 1024) <= pool < cache.nbytes(most + 1, 1024)
    assert longest is not None
    assert longest % 16 == 0
    assert cache.nbytes(1, longest) <= pool < cache.nbytes(1, longest + 16)


def test_windows_bound_the_cache_and_states_do_not_grow(planner) -> None:
    engine = planner("window")
    found = room(engine, Request(1000, 24))
    cache = cache_of(engine, found.lowered.facts)
    assert cache.nbytes(1, 512) == cache.nbytes(1, 10**6)
    assert found.longest() is None


def test_the_tightest_stage_decides(planner) -> None:
    """Three of four layers, and the head, on one stage: its cache and weights are three times the other's."""
    engine = planner("dense", pp=2, pp_split=(1, 3))
    found = room(engine, Request(1000, 24))
    small, large = found.stages(100, 1024)
    assert large.cache == 3 * small.cache
    assert found.tightest(100, 1024).stage == 1
    one = cache_of(engine, found.lowered.facts, found.lowered.stages[1]).nbytes(1, 1024)
    assert found.most(1024) == large.pool // one


def test_groups_with_attention_of_their_own_hold_requests_of_their_own(planner) -> None:
    one = room(planner("experts", tp=2), Request(1000, 24))
    many = room(planner("experts", ep=2, attention_dp=2), Request(1000, 24))
    facts = one.lowered.facts
    assert cache_of(many.planner, facts).nbytes(1, 1024) == 2 * cache_of(one.planner, facts).nbytes(1, 1024)
    assert many.of(0, 10, 1024).cache == cache_of(many.planner, facts).nbytes(5, 1024)


def test_a_larger_pass_leaves_less(planner) -> None:
    pools = [room(planner("dense"), Request(100, 10), batched_tokens=n).of(0, 1, 110).pool for n in (512, 4096, 12000)]
    assert pools == sorted(pools, reverse=True)


def test_parameters_and_formats_are_what_the_graph_tells(planner) -> None:
    engine = planner("dense", weights="int4")
    m = room(engine, Request(100, 10)).of(0, 1, 110)
    facts = engine.lowered("decode", {"batch": 1, "kv": 100}).facts
    assert m.weights == sum(nbytes(p.numel, p.dtype) for p in facts.parameters)
