"""O05: Mixtral trains with the two experts that a token meets, and stores all eight.

Source: MaxText pull request 678: 287.78 TFLOP before, 79.98 after.
"""

from __future__ import annotations

import pytest

import torchperf


def test_o05(captured, measured, row) -> None:
    estimate = torchperf.estimate(captured("mixtral-8x7b"), gpu="h100-sxm-80gb", seq_len=1024)
    assert estimate.parameters == 46_702_792_704
    assert estimate.flops_noncausal.model == pytest.approx(79.98e12, rel=1e-3)
    attention = 12 * 32 * 4096 * 1024 * 1024  # 12 L H D S a token
    matmul_parameters, left = divmod(estimate.flops_noncausal.model - attention, 6 * 1024)
    assert (matmul_parameters, left) == (12_748_587_008, 0)


def test_o05_mfu_says_so(measured, row) -> None:
    answer = measured("mixtral-8x7b", "--gpu", "h100-sxm-80gb", "--seq-len", 1024, "--tokens-per-s-per-gpu", 1)
    per_token = row(answer, "non-causal, without input embedding")["flops_per_token"]
    assert per_token * 1024 == pytest.approx(79.98e12, rel=1e-3)
    assert any("experts that a token does not meet" in line for line in answer["assumptions"])
