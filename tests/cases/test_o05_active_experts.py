"""O05: Mixtral trains with the two experts that a token meets, and stores all eight.

Source: MaxText pull request 678: 287.78 TFLOP before, 79.98 after.
"""

from __future__ import annotations

import pytest

import torchperf


def test_o05(recorded) -> None:
    estimate = torchperf.estimate(recorded("mixtral-8x7b", 1024), gpu="h100-sxm-80gb")
    assert estimate.parameters == 46_702_792_704
    assert estimate.flops_noncausal.model == pytest.approx(79.98e12, rel=1e-3)
    attention = 12 * 32 * 4096 * 1024 * 1024  # 12 L H D S a token
    matmul_parameters, left = divmod(estimate.flops_noncausal.model - attention, 6 * 1024)
    assert (matmul_parameters, left) == (12_748_587_008, 0)


def test_o05_mfu_says_so(recorded) -> None:
    answer = torchperf.mfu(recorded("mixtral-8x7b", 1024), gpu="h100-sxm-80gb", tokens_per_s_per_gpu=1000.0)
    assert answer.mfu[0].convention.startswith("non-causal, without input embedding")
    assert answer.mfu[0].flops_per_token * 1024 == pytest.approx(79.98e12, rel=1e-3)
    assert any("experts that a token does not meet" in line for line in answer.assumptions)
