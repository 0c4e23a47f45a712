"""A sum over tokens in closed form is the sum of the tokens; what it costs does not depend on their number."""

from __future__ import annotations

import time
from math import log

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchperf import hardware
from torchperf.graph.inference import InferencePlan, InferencePrecision, Request
from torchperf.inference import Binder
from torchperf.inference_planner import InferencePlanner
from torchperf.schedule.serving_sum import summed


@given(
    st.integers(1, 5000), st.integers(0, 3000), st.floats(0, 3), st.floats(0.1, 10), st.floats(0, 1e-3),
    st.integers(0, 6000),
)  # fmt: skip
def test_of_smooth_functions_with_a_bend(first: int, more: int, slope: float, start: float, bow: float, bend: int):
    def of(k: int) -> float:
        return start + slope * min(k, bend) / 1000 + bow * log(1 + k) ** 2

    total = summed(of, first, first + more, (bend,))
    assert total == pytest.approx(sum(map(of, range(first, first + more + 1))), rel=1e-3)


def test_nothing_to_sum() -> None:
    assert summed(lambda k: 1.0, 5, 4) == 0.0
    assert summed(float, 7, 7) == 7.0


def test_evaluations_do_not_grow_with_the_terms() -> None:
    seen: list[int] = []

    def of(k: int) -> float:
        seen.append(k)
        return 1.0 + k / 1e5 + log(k)

    summed(of, 100, 1000)
    few = len(seen)
    summed(of, 100, 1_000_000)
    assert len(seen) - few < 10 * few


@pytest.mark.parametrize(("name", "runtime"), [("dense", "vllm"), ("window", "tensorrt-llm"), ("latent", "vllm")])
@pytest.mark.parametrize("batch", [1, 24])
def test_tokens_of_an_answer(planner, name: str, runtime: str, batch: int) -> None:
    """Across the window of 512, each token captured, split and priced on its own."""
    engine = planner(name, runtime=runtime, tp=2)
    request = Request(490, 40)
    alone = sum(engine.decode(batch, kv).seconds for kv in range(490, 490 + 39))
    assert engine.decode_seconds(batch, request) == pytest.approx(alone, rel=1e-3)
    served = engine.generate(batch, request)
    assert served.ttft == engine.prefill(batch, 490).seconds
    assert served.latency == pytest.approx(served.ttft + 39 * served.tpot)


def test_a_70b_with_128k_of_context_in_a_fifth_of_a_second() -> None:
    """2,000 tokens, TP 8, once captured: seconds of the processor, the best of three."""
    bind = Binder("llama-3.1-70b")
    bind("prefill", {"batch": 1, "seq": 2000})
    bind("decode", {"batch": 1, "kv": 2000})
    system, runtime = hardware.load_system("dgx-h100"), hardware.load_runtime("vllm")
    spent = []
    for _ in range(3):
        start = time.process_time()
        engine = InferencePlanner(bind, system, runtime, InferencePrecision(), InferencePlan(tp=8))
        served = engine.generate(1, Request(128_000, 2000))
        spent.append(time.process_time() - start)
    assert served.tpot > 0
    assert min(spent) <= 0.2
