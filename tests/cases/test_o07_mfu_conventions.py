"""O07: the MFU of one run in each convention, by name.

Source: Megatron-Bridge docs/performance-summary.md (744 TFLOP/s, causal), torchtitan docs/performance.md (56.8 % with
the embedding), torchtitan issues 452, 280.
"""

from __future__ import annotations

import pytest

PER_TOKEN = {
    "non-causal, without input embedding": 57.913e9,
    "causal": 51.470e9,
    "non-causal, with input embedding (PaLM)": 61.065e9,
}


def test_o07_flops_per_token(measured, row) -> None:
    answer = measured("llama-3.1-8b", "--gpu", "h100-sxm-80gb", "--seq-len", 8192, "--tokens-per-s-per-gpu", 14451)
    assert answer["parameters"] == 8_030_261_248
    for convention, flops in PER_TOKEN.items():
        assert row(answer, convention)["flops_per_token"] == pytest.approx(flops, rel=5e-4)
    assert row(answer, "causal")["flops_per_s_per_gpu"] == pytest.approx(743.8e12, abs=0.05e12)


def test_o07_a100(measured, row) -> None:
    answer = measured("llama-3.1-8b", "--gpu", "a100-sxm-80gb", "--seq-len", 8192, "--tokens-per-s-per-gpu", 2904)
    assert row(answer, "non-causal, with input embedding")["value"] == pytest.approx(0.568, abs=5e-4)
    assert row(answer, "non-causal, without input embedding")["value"] == pytest.approx(0.539, abs=5e-4)


def test_o07_the_table_names_each_convention(command) -> None:
    result = command(
        "mfu", "llama-3.1-8b", "--gpu", "h100-sxm-80gb", "--seq-len", 8192, "--tokens-per-s-per-gpu", 14451
    )
    assert result.exit_code == 0
    for text in ("84.59 %", "75.18 %", "89.19 %", "743.8 TFLOP/s", "12 L H D S", "6 L H D S", "(PaLM)"):
        assert text in result.stdout
