"""Forward FLOPs, exact and non-causal: 2 (N - embeddings - norms) T + 4 S^2 h L."""

from __future__ import annotations

import pytest

import torchperf

# (model, S): FLOPs of one sequence, h, L, parameters that no matmul reads
CASES = {
    ("llama-3.1-8b", 4096): (70_274_254_897_152, 4096, 32, 128256 * 4096 + (2 * 32 + 1) * 4096),
    ("llama-3.1-405b", 4096): (3_446_041_240_141_824, 16384, 126, 128256 * 16384 + (2 * 126 + 1) * 16384),
    # tied: the embedding is the head and is counted; positions, biases (13 h a layer with the norms') are not
    ("gpt2", 1024): (291_648_307_200, 768, 12, 1024 * 768 + 12 * 13 * 768 + 2 * 768),
}


@pytest.mark.parametrize(("model", "seq"), CASES)
def test_forward_flops(recorded, model: str, seq: int) -> None:
    expected, h, layers, outside = CASES[model, seq]
    estimate = torchperf.estimate(recorded(model, seq), gpu="b200-sxm-180gb")
    by_hand = 2 * (estimate.parameters - outside) * seq + 4 * seq**2 * h * layers
    assert estimate.flops_noncausal.forward == expected == by_hand
    assert estimate.flops_noncausal.backward == 2 * expected
    assert torchperf.estimate(recorded(model, seq), gpu="b200-sxm-180gb", recompute="full").flops.model == (
        estimate.flops.model
    )


@pytest.mark.parametrize(("model", "seq"), CASES)
def test_the_causal_triangle(recorded, model: str, seq: int) -> None:
    """Causal attention sees S (S + 1) / 2 pairs of S^2."""
    _, h, layers, _ = CASES[model, seq]
    estimate = torchperf.estimate(recorded(model, seq), gpu="b200-sxm-180gb")
    unseen = seq**2 - seq * (seq + 1) // 2
    assert estimate.flops_noncausal.forward - estimate.flops.forward == 4 * unseen * h * layers
    assert estimate.flops_noncausal.backward - estimate.flops.backward == 8 * unseen * h * layers


def test_batch_multiplies(captured) -> None:
    """FLOPs are per sequence: three sequences take three times as many."""
    one, three = (
        torchperf.estimate(captured("gpt2"), gpu="b200-sxm-180gb", seq_len=512, micro_batch=b) for b in (1, 3)
    )
    assert three.flops_noncausal.model == 3 * one.flops_noncausal.model
    assert three.flops.model == 3 * one.flops.model
