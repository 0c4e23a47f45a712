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
from torchperf.validate.other_rows import on_clock

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
