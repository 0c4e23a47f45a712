"""A power cap is an input: the same device with lower clocks, and told so."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchperf.graph.errors import TorchperfError
from torchperf.hardware import load_accelerator

A100 = load_accelerator("a100-sxm-80gb")


def test_330_w_of_400() -> None:
    capped = A100.capped(330)
    assert capped.peak_flops_per_s("matrix", "bf16") == pytest.approx(312e12 * (330 / 400) ** (1 / 3))
    assert capped.clock.value == pytest.approx(1410e6 * 0.938, rel=1e-3)
    assert (capped.memory, capped.name, capped.tdp.value) == (A100.memory, A100.name, 330)
    assert capped.peak("matrix", "bf16").basis == "assumed"
    assert capped.peak("matrix", "bf16").condition.endswith(
        "capped at 330 W: x 0.938, the cube root of the share of the TDP"
    )


@given(st.floats(1, 2000), st.floats(1, 2000))
def test_more_power_is_never_slower(one: float, other: float) -> None:
    less, more = (A100.capped(w).peak_flops_per_s("matrix", "bf16") for w in sorted((one, other)))
    assert less <= more <= 312e12


def test_a_cap_above_the_tdp_changes_nothing() -> None:
    assert A100.capped(400) == A100.capped(500) == A100


@pytest.mark.parametrize("watts", [0, -1, float("nan")])
def test_no_power_is_an_error(watts: float) -> None:
    with pytest.raises(TorchperfError, match="a power cap must be above 0 W"):
        A100.capped(watts)
