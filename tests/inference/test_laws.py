"""What holds of every engine: more work takes longer, no step beats its reads, few bits are never slower."""

from __future__ import annotations

from itertools import pairwise

import pytest

from torchperf.graph.inference import Request
from torchperf.inference_memory import cache_of
from torchperf.inference_tables import read_bound

MODELS = ("dense", "window", "experts", "latent")
RUNTIMES = ("vllm", "tensorrt-llm", "gpt-fast", "fastertransformer", "lmdeploy", "llama-cpp", "transformers-eager")


@pytest.mark.parametrize("name", MODELS)
def test_a_step_grows_with_the_cache_and_with_the_batch(planner, name: str) -> None:
    engine = planner(name)
    steps = [engine.decode(4, kv).seconds for kv in (50, 400, 3000, 12000)]
    assert steps == sorted(steps)
    assert steps[-1] > steps[0]
    steps = [engine.decode(batch, 1000).seconds for batch in (1, 2, 3, 8, 30, 100)]
    assert all(after >= before * (1 - 1e-9) for before, after in pairwise(steps))
    prompts = [engine.prefill(2, seq).seconds for seq in (20, 100, 700, 4000)]
    assert prompts == sorted(prompts)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("system", ["dgx-a100-80gb", "dgx-h100", "rtx-3090-8gpu"])
@pytest.mark.parametrize("tp", [1, 4])
def test_no_step_beats_what_it_reads(planner, name: str, system: str, tp: int) -> None:
    engine = planner(name, system=system, tp=tp)
    bandwidth = engine.system.accelerator.memory.bandwidth.value
    for batch, kv in ((1, 100), (8, 2000), (64, 500)):
        step = engine.decode(batch, kv)
        assert step.seconds > read_bound(step, bandwidth) > 0


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_every_runtime_prices_both_passes(planner, runtime: str) -> None:
    engine = planner("dense", runtime=runtime)
    served = engine.generate(2, Request(300, 20))
    assert 0 < served.tpot < served.ttft < served.latency


def test_the_host_holds_up_eager_alone(planner) -> None:
    """7 us an op against a replayed graph: a step of one sequence is several times as long."""
    eager, replayed = (planner("dense", runtime=name).decode(1, 200) for name in ("transformers-eager", "gpt-fast"))
    launches = sum(count for cost in eager.stages for count, _, _, price in cost.rows() if price.seconds > 0)
    assert eager.seconds >= launches * 7e-6
    assert replayed.seconds < eager.seconds


@pytest.mark.parametrize("system", ["dgx-a100-80gb", "dgx-h100", "dgx-h200", "dgx-b200", "l40s-8gpu", "rtx-3090-8gpu"])
@pytest.mark.parametrize("name", ["dense", "experts"])
@pytest.mark.parametrize("weights", ["int8", "int4", "mxfp4"])
@pytest.mark.parametrize("batch", [1, 4, 16])
def test_few_bits_never_slow_a_memory_bound_decode(planner, system: str, name: str, weights: str, batch: int) -> None:
    whole = planner(name, system=system).decode(batch, 500).seconds
    few = planner(name, system=system, weights=weights, activations="bf16").decode(batch, 500).seconds
    assert few < whole


@pytest.mark.parametrize("batch", [1, 16])
def test_fp8_weights_and_cache_are_faster(planner, batch: int) -> None:
    times = [
        planner("dense", weights=weights, kv=kv).decode(batch, 8000).seconds
        for weights, kv in (("bf16", "bf16"), ("fp8", "bf16"), ("fp8", "fp8"))
    ]
    assert times == sorted(times, reverse=True)


@pytest.mark.parametrize("tp", [2, 4, 8])
def test_tensor_parallelism_shares_heads_and_keeps_latents(planner, tp: int) -> None:
    for name, share in (("dense", tp), ("latent", 1)):
        one, many = (planner(name, tp=n) for n in (1, tp))
        kept = [
            cache_of(engine, engine.lowered("decode", {"batch": 1, "kv": 100}).facts).nbytes(3, 4000)
            for engine in (one, many)
        ]
        assert kept[0] == share * kept[1]


def test_more_devices_are_faster_until_the_all_reduce_is_the_step(planner) -> None:
    steps = [planner("dense", tp=tp).decode(8, 1000).seconds for tp in (1, 2, 4)]
    assert steps == sorted(steps, reverse=True)


def test_one_shot_all_reduces_are_faster_than_nccl(planner) -> None:
    """The same layers on both: 2 a layer, of a few kB."""
    found = {}
    for name in ("vllm", "lmdeploy"):
        step = planner("dense", runtime=name, tp=4).decode(1, 500)
        found[name] = sum(n * p.seconds for c in step.stages for n, _, w, p in c.rows() if w.kind == "collective")
    assert 0 < found["vllm"] < found["lmdeploy"] / 1.5


@pytest.mark.parametrize("pp", [2, 4])
def test_a_pipeline_gives_throughput_not_latency(planner, pp: int) -> None:
    """One sequence passes every stage in turn; as many micro-batches as stages keep all of them busy."""
    one, many = planner("dense", runtime="gpt-fast"), planner("dense", runtime="gpt-fast", pp=pp)
    assert many.decode(1, 500).seconds >= one.decode(1, 500).seconds
    assert many.micro_batches(8 * pp) == (8, pp)
    step = many.decode(64, 500)
    assert step.seconds == pytest.approx(max(step.through, pp * step.slowest.seconds))
    assert many.prefill(8 * pp, 500).seconds < one.prefill(8 * pp, 500).seconds


@pytest.mark.parametrize(
    "plan", [{"tp": 2, "ep": 2}, {"ep": 2, "attention_dp": 2}, {"tp": 2, "ep": 2, "attention_dp": 2}]
)
def test_experts_shared_out_are_all_in_memory_once(planner, plan: dict[str, int]) -> None:
    """The bytes of experts on a device times the devices that share them: those of the model."""

    def experts(engine) -> int:
        facts = engine.lowered("decode", {"batch": 4, "kv": 100}).facts
        return sum(p.numel for p in facts.parameters if "experts" in p.names[0])

    shares = plan.get("tp", 1) * plan.get("attention_dp", 1)
    assert experts(planner("experts", **plan)) * shares == experts(planner("experts"))


def test_experts_on_tensor_parallel_devices_read_what_split_ones_read(planner) -> None:
    """E/2 whole experts met by all tokens, or all experts' halves: the same bytes in the mean."""
    split, shared = (planner("experts", tp=2, ep=ep).decode(8, 100) for ep in (1, 2))
    read = [
        sum(n * w.bytes_read for c in step.stages for n, _, w, _ in c.rows() if "groups" in dict(w.dims))
        for step in (split, shared)
    ]
    assert read[0] == pytest.approx(read[1], rel=0.02)


def test_drafts_give_more_tokens_for_one_pass(planner) -> None:
    engine = planner("dense")
    plain, drafted = (engine.generate(1, Request(500, 200, 0.0, k, 0.8)) for k in (0, 4))
    assert Request(500, 200, 0.0, 4, 0.8).tokens_per_step == pytest.approx((1 - 0.8**5) / 0.2)
    assert plain.tpot / 3.4 < drafted.tpot < plain.tpot


def test_a_cached_prefix_is_not_computed_again(planner) -> None:
    engine = planner("dense")
    times = [engine.first(2, Request(4000, 10, share)) for share in (0.0, 0.5, 0.9, 1.0)]
    assert times == sorted(times, reverse=True)
    assert times[-1] < times[0] / 5
