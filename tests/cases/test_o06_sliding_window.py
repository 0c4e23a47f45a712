"""O06: a layer with a window of 128 attends to 128 tokens: gpt-oss at S = 4096.

torchtitan's convention: 6 N of the active parameters + 12 L H D min(window, S) in every other layer. Its N holds
biases and norms; a count of matmuls alone gives 6 N = 30,786,600,960 for the 120b, hence 0.1 %.
Source: torchtitan pull request 4300; ignoring the window gives 10 % more, and an MFU above 100 %.
"""

from __future__ import annotations

import pytest

import torchperf

TITAN = {"gpt-oss-120b": 34_534_221_696, "gpt-oss-20b": 24_141_260_160}
LAYERS = {"gpt-oss-120b": 36, "gpt-oss-20b": 24}


@pytest.mark.parametrize("model", TITAN)
def test_o06_counted_from_the_graph(recorded, model: str) -> None:
    estimate = torchperf.estimate(recorded(model, 4096), gpu="b200-sxm-180gb")
    per_token = estimate.flops_noncausal.model / 4096
    assert per_token == pytest.approx(TITAN[model], rel=1e-3)
    if model == "gpt-oss-120b":
        assert estimate.parameters == 116_829_156_672
        assert per_token == 30_786_600_960 + 12 * 64 * 64 * (4096 + 128) * LAYERS[model] // 2


@pytest.mark.parametrize("model", TITAN)
def test_o06_mfu(recorded, model: str) -> None:
    """The row `6 (N - N_embedding) + 12 L H D S`, its N without the experts that a token does not meet."""
    answer = torchperf.mfu(recorded(model, 4096), gpu="h100-sxm-80gb", tokens_per_s_per_gpu=1000.0)
    assert answer.mfu[0].convention.startswith("non-causal, without input embedding")
    assert answer.mfu[0].flops_per_token == pytest.approx(TITAN[model], rel=1e-3)
