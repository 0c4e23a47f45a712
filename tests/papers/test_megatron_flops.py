"""GPT-3 and Megatron GPT against the closed form of Narayanan et al., arXiv 2104.04473, equation 3.

    F = 72 B L s h^2 (1 + s / (6 h) + V / (12 h L))      forward and backward, non-causal, nothing recomputed

(The paper prints 96 and V / (16 h L): its runs repeat forward, and the head is not repeated.) The terms are
24 B s L h^2 for the four matmuls of a layer (12 h^2 weights), 4 B s^2 L h for Q K^T and P V, 2 B s V h for the head,
times three. The counted FLOPs differ from it by nothing: biases, norms, embeddings, softmax and loss hold no matmul,
and heads times head dim is h in every bundled config (where the table of GPT-3 prints 24 heads of 128 for h = 2048, the
config has 16; where it prints h = 5140 for 40 heads of 128, the config has 5120).
"""

from __future__ import annotations

from fractions import Fraction

import pytest

import torchperf
from torchperf import configs
from torchperf.graph.graph import Capture

# arXiv 2005.14165 table 2.1, with V = 50257: L, h
GPT3 = {
    "gpt3-125m": (12, 768),
    "gpt3-350m": (24, 1024),
    "gpt3-760m": (24, 1536),
    "gpt3-1.3b": (24, 2048),
    "gpt3-2.7b": (32, 2560),
    "gpt3-6.7b": (32, 4096),
    "gpt3-13b": (40, 5120),
    "gpt3-175b": (96, 12288),
}
# arXiv 2205.05198 table 3, with V = 51200
MEGATRON = {
    "megatron-gpt-22b": (48, 6144),
    "megatron-gpt-175b": (96, 12288),
    "megatron-gpt-530b": (105, 20480),
    "megatron-gpt-1t": (128, 25600),
}


def closed_form(batch: int, s: int, layers: int, h: int, vocab: int) -> Fraction:
    """72 B L s h^2 (1 + s / (6 h) + V / (12 h L))"""
    return 72 * batch * layers * s * h**2 * (1 + Fraction(s, 6 * h) + Fraction(vocab, 12 * h * layers))


def counted(recorded, model: str) -> int:
    """Non-causal FLOPs of a step at s = 2048; a deep stack from two shallow ones, F(2) + (L - 2) (F(3) - F(2))."""

    def of(capture: Capture) -> int:
        return torchperf.estimate(capture, gpu="b200-sxm-180gb").flops_noncausal.model

    layers = configs.load(model)["n_layer"]
    if layers <= 40:
        return of(recorded(model, 2048))
    two, three = (of(recorded(model, 2048, n_layer=n)) for n in (2, 3))
    return two + (layers - 2) * (three - two)


@pytest.mark.parametrize(("model", "shape"), (GPT3 | MEGATRON).items())
def test_closed_form(recorded, model: str, shape: tuple[int, int]) -> None:
    """Integer equality for every row of both tables."""
    layers, h = shape
    vocab = 50257 if model in GPT3 else 51200
    config = configs.load(model)
    assert (config["n_layer"], config["n_embd"], config["vocab_size"]) == (layers, h, vocab)
    assert counted(recorded, model) == closed_form(1, 2048, layers, h, vocab)


def test_a_stack_is_the_sum_of_its_layers(recorded) -> None:
    """What the deep rows rest on: twelve layers recorded are twelve times one."""
    two, three, all_of_them = (
        torchperf.estimate(recorded("gpt3-125m", 2048, **how), gpu="b200-sxm-180gb").flops_noncausal.model
        for how in ({"n_layer": 2}, {"n_layer": 3}, {})
    )
    assert all_of_them == two + 10 * (three - two)
