"""Prices of ops that move bytes: laws, and NeuSight's clock."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchperf.graph.errors import TorchperfError
from torchperf.graph.work import Work
from torchperf.hardware import load_accelerator
from torchperf.price.memory_bound import Constants, fit_of, parts, price
from torchperf.validate.other_rows import Case, Experts, case, experts_met, on_clock

DEVICES = ("a100-sxm-80gb", "h100-sxm-80gb", "t4", "v100-pcie-32gb", "mi300x")
LOADED = {name: load_accelerator(name) for name in DEVICES}
KINDS = ("elementwise", "rows", "gather", "rope")
devices = st.sampled_from(DEVICES)
kinds = st.sampled_from(KINDS)
nbytes = st.integers(0, 10**10)


def work(moved: int, flops: int = 0, kind: str = "pointwise", dtype: str = "fp32") -> Work:
    return Work(kind, "vector", dtype, flops, flops, flops, moved - moved // 2, moved // 2)


@given(devices, kinds, nbytes, st.integers(1, 10**8), st.booleans())
def test_never_falls_with_bytes(device: str, kind: str, moved: int, more: int, resident: bool) -> None:
    chip = LOADED[device]
    few, many = (price(work(size), chip, kind, resident).seconds for size in (moved, moved + more))
    assert many >= few


@given(devices, kinds, nbytes, st.integers(0, 10**12))
def test_never_below_the_roofline(device: str, kind: str, moved: int, flops: int) -> None:
    chip = LOADED[device]
    time = price(work(moved, flops), chip, kind).seconds
    assert time >= moved / chip.memory.bandwidth.value
    assert time >= flops / chip.peak_flops_per_s("vector", "fp32")


@given(devices, kinds, nbytes, st.integers(0, 10**12), st.booleans())
def test_falls_or_stays_when_a_peak_rises(device: str, kind: str, moved: int, flops: int, resident: bool) -> None:
    chip = LOADED[device]
    c, size, count = Constants.of(fit_of(chip, kind)), np.array([float(moved)]), np.array([float(flops)])
    plain = parts(size, count, c, 1e12, 4e7, 1e13, resident).seconds
    assert parts(size, count, c, 2e12, 4e7, 1e13, resident).seconds <= plain
    assert parts(size, count, c, 1e12, 8e7, 1e13, resident).seconds <= plain
    assert parts(size, count, c, 1e12, 4e7, 2e13, resident).seconds <= plain


def test_kinds_take_their_own_constants() -> None:
    chip = LOADED["a100-sxm-80gb"]
    norm, copy, gather = (price(work(10**8, kind=kind), chip).seconds for kind in ("norm", "copy", "gather"))
    assert copy < norm < gather


def test_what_fits_the_cache_is_faster_only_where_it_may_lie_there() -> None:
    chip = LOADED["a100-sxm-80gb"]
    cold, warm = (price(work(10**7), chip, "elementwise", resident) for resident in (False, True))
    assert warm.seconds < cold.seconds
    assert (cold.bound, warm.bound) == ("hbm", "l2")
    large = (price(work(10**9), chip, "elementwise", resident).seconds for resident in (False, True))
    assert next(large) == pytest.approx(next(large))


def test_bounds_and_terms() -> None:
    chip = LOADED["h100-sxm-80gb"]
    assert price(work(1000), chip).bound == "launch"
    assert price(work(1000, 10**12), chip).bound == "compute"
    priced = price(work(10**9, 10**6), chip)
    floor, memory, compute = (term.seconds for term in priced.terms)
    assert priced.seconds == pytest.approx(floor + max(memory, compute))
    assert all(term.sources for term in priced.terms)


def test_a_device_without_fits_says_so() -> None:
    with pytest.raises(TorchperfError, match=r"no fit `memory\.elementwise`"):
        price(work(10), replace(LOADED["t4"], fits=()))


def test_an_idle_device_shows_the_launch_then_half_of_it() -> None:
    kernel = np.array([1e-6, 15e-6, 100e-6])
    assert on_clock(kernel, 30e-6) == pytest.approx([30e-6, 30e-6, 115e-6])


def row(op: str, shape: str, dtype: str = "float16", source: str = "vidur@0:x") -> dict[str, str]:
    return {"source": source, "gpu": "A100-80GB", "op": op, "shape": shape, "dtype": dtype, "measured_us": "10"}


def test_rows_become_the_bytes_that_they_move() -> None:
    add, quantise = case(row("add", "8x4")), case(row("fp8_quantize_given_scale", "8x4", "bfloat16->fp8"))
    assert isinstance(add, Case)
    assert isinstance(quantise, Case)
    assert (add.work.bytes_read, add.work.bytes_written, add.eager) == (128, 64, False)
    assert (quantise.work.bytes_read, quantise.work.bytes_written) == (64, 32)
    assert case(row("conv", "8x4")) == "no op `conv`"
    assert case(row("add", "8x4", "int4")) == "no dtype `int4`"
    assert case(row("add", "")) == "no `shape`"


def test_fewer_experts_are_met_where_tokens_crowd() -> None:
    shape = "tokens=16;hidden=64;inter=32;topk=6;experts=128;tp=1;ep={};dist={}"
    even, halved, skewed = (
        case(row("moe_ffn", shape.format(ep, dist), "bfloat16"))
        for ep, dist in ((1, "balanced"), (2, "balanced"), (1, "power_law_1.2"))
    )
    assert isinstance(even, Experts)
    assert isinstance(halved, Experts)
    assert isinstance(skewed, Experts)
    assert (experts_met(even), experts_met(halved)) == (96, 48)
    assert experts_met(skewed) < 48
