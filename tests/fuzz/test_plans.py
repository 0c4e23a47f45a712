"""Plans and requests of any degrees, on a small model: an estimate, or a message that names the flag."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from fuzz_examples import share
from hypothesis import given
from hypothesis import strategies as st

import torchperf
from torchperf.graph.graph import Capture
from torchperf.graph.plan import CP_KINDS, OFFLOADS, REDUCE_DTYPES, SCHEDULES

Attempt = Callable[[], AbstractContextManager[None]]


degrees = st.sampled_from([1, 1, 2, 2, 3, 4, 8, 0, -1, 1000, 10**9, 10**30])
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "tp": degrees, "pp": degrees, "dp": degrees, "cp": degrees, "ep": degrees, "dp_shard": degrees,
    "expert_tp": degrees, "virtual_stages": degrees, "num_gpus": degrees,
    "pp_split": st.lists(st.integers(-1, 4), max_size=4).map(tuple),
    "zero_stage": st.integers(-2, 4),
    "reshard": st.booleans(),
    "sequence_parallel": st.booleans(),
    "schedule": st.sampled_from([*SCHEDULES, "", "x"]),
    "cp_kind": st.sampled_from([*CP_KINDS, "x"]),
    "reduce_dtype": st.sampled_from([*REDUCE_DTYPES, "x"]),
    "offload": st.sampled_from([*OFFLOADS, "x"]),
    "moe_imbalance": st.one_of(st.floats(0.5, 4), st.just(math.nan), st.just(math.inf), st.just(1e308)),
    "recompute": st.sampled_from(
        ["none", "full", "selective", "selective-ops", "full:1", "full:99", "full:-1", "full:x", "modules:mlp",
         "modules:", "modules:x+y", "x"]
    ),
    "global_batch": st.sampled_from([1, 2, 8, 12, 64, 0, -4, 10**4, 10**18]),
    "micro_batch": st.sampled_from([1, 2, 4, -1, 10**6, 10**30]),
    "seq_len": st.sampled_from([1, 8, 64, 100, 1024, 1025, 0, -1]),
    "precision": st.sampled_from(["bf16-mixed", "bf16", "fp32", "fp8-delayed", "mxfp8", "nvfp4", "x"]),
    "optimizer": st.sampled_from(["adamw", "sgd", "adafactor", "x"]),
    "runtime": st.sampled_from(["eager", "compile", "megatron-core", "fsdp-eager", "vllm", "x", "../eager"]),
    "attention": st.sampled_from(["auto", "flash", "unfused", "x"]),
    "tokens": st.sampled_from([0, 1, 1e12, math.nan, math.inf, -1]),
    "goodput": st.sampled_from([0.0, 0.5, 1.0, 2.0, math.nan]),
    "power_cap": st.sampled_from([1.0, 350.0, 1e9, 0.0, -5.0, math.nan]),
}  # fmt: skip


@st.composite
def plans(draw: st.DrawFn) -> dict[str, Any]:
    """A few fields of a plan, not all: with many, one is always wrong."""
    names = draw(st.lists(st.sampled_from(sorted(FIELDS)), unique=True, max_size=4))
    return {name: draw(FIELDS[name]) for name in names}


@share(40)
@given(plans())
def test_plans(attempt: Attempt, tiny: Callable[[], Capture], plan: dict[str, Any]) -> None:
    """Whatever the degrees, nothing divides by zero, lists as many ranks as asked for, or comes out as NaN."""
    with attempt():
        answer = torchperf.estimate(tiny(), gpu="h100-sxm-80gb", **plan)
        assert math.isfinite(answer.step_time_s)
        assert answer.step_time_s > 0
        assert answer.memory.peak > 0
