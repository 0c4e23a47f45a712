"""O08: MFU is a share of the dense peak. Llama-2-7B on H100 SXM, 9,600 tokens/s/GPU, 0.05 TFLOP a token.

Source: fms-fsdp issue 89 (24.3 % against the 2:4 sparse 1979); Megatron-LM issue 1565, nanoGPT pull request 464.
"""

from __future__ import annotations

import pytest


def test_o08(measured) -> None:
    answer = measured("--flops-per-token", "0.05e12", "--gpu", "h100-sxm-80gb", "--tokens-per-s-per-gpu", 9600)
    assert answer["peak_flops_per_s"] == pytest.approx(989e12, rel=1e-3)
    (mfu,) = answer["mfu"]
    assert mfu["value"] == pytest.approx(0.485, abs=5e-4)
    assert mfu["value"] != pytest.approx(0.243, abs=5e-3)


def test_o08_from_the_model(measured, row) -> None:
    """The model itself says what a token costs: 6 N + 12 L H D S at S = 4096 is 0.047 TFLOP."""
    answer = measured("llama-2-7b", "--gpu", "h100-sxm-80gb", "--seq-len", 4096, "--tokens-per-s-per-gpu", 9600)
    mfu = row(answer, "non-causal, with input embedding")
    assert mfu["flops_per_token"] == 6 * 6_738_415_616 + 12 * 32 * 4096 * 4096
    assert mfu["value"] == pytest.approx(0.45, abs=0.01)
