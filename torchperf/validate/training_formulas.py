"""What publishers of training runs call FLOPs: a rate or a utilisation of theirs becomes seconds by their own formula.

Symbols: B samples of a step, s tokens of a sample, L layers, h hidden, V vocabulary, f width of the MLP, a heads, g
heads of keys and values, d dims of a head, k experts of a token, m 3/2 for a gated MLP and 1 for a plain one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Dims:
    """The dims that the formulas are written in; `ffn` is the width of one expert where there are experts."""

    batch: int
    seq: int
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    gated: bool
    top_k: int = 1


def narayanan(x: Dims) -> float:
    """F = 96 B s L h^2 (1 + s / 6h + V / 16 L h): full recompute included [arXiv 2104.04473, equation 3]."""
    return (
        96 * x.batch * x.seq * x.layers * x.hidden**2
        * (1 + x.seq / (6 * x.hidden) + x.vocab / (16 * x.layers * x.hidden))
    )  # fmt: skip


def korthikanti(x: Dims) -> float:
    """F = 72 B s L h^2 (1 + s / 6h + V / 12 L h): the model's own, no recompute [arXiv 2205.05198, appendix A]."""
    return (
        72 * x.batch * x.seq * x.layers * x.hidden**2
        * (1 + x.seq / (6 * x.hidden) + x.vocab / (12 * x.layers * x.hidden))
    )  # fmt: skip


def megatron(x: Dims) -> float:
    """F = 12 B s L h^2 ((1 + g/a + s/h) a d / h + k m f / h + V / 2 L h).

    `num_floating_point_operations` of NVIDIA/Megatron-LM, megatron/training/training.py, core r0.5 to r0.11.
    """
    return _megatron(x, 1.0)


def megatron_causal(x: Dims) -> float:
    """As `megatron`, with s / 2h for s / h: the half of the scores that a causal mask leaves.

    The same function since 2025 ("only half of the attention matrix is non-zero"). Rows of the MoE model zoo that
    give time and TFLOP/s agree with it to 0.6 %, and with `megatron` to 13 %.
    """
    return _megatron(x, 0.5)


def nemo(x: Dims) -> float:
    """F = B s L h^2 (12 + 12 g/a + 12 m f/h + 12 s/h + 6 V / L h).

    `llama2`, `llama3` of NVIDIA/NeMo, nemo/utils/flops_formulas.py, 24.12; `megatron` with a d = h.
    """
    return _megatron(x, 1.0)


def nanotron(x: Dims) -> float:
    """F = 3 (2 B s L h d (a + 2 g) + 4 B s^2 L a d + 2 B s L a d h + 6 B s L h f + 2 B s h V).

    `get_flops` of huggingface/nanotron, src/nanotron/models/llama.py.
    """
    tokens = x.batch * x.seq
    layer = (
        2 * x.hidden * x.head_dim * (x.heads + 2 * x.kv_heads)
        + 4 * x.seq * x.heads * x.head_dim
        + 2 * x.heads * x.head_dim * x.hidden
        + 6 * x.hidden * x.ffn
    )
    return 3.0 * tokens * (x.layers * layer + 2 * x.hidden * x.vocab)


FORMULAS: dict[str, Callable[[Dims], float]] = {
    function.__name__: function for function in (narayanan, korthikanti, megatron, megatron_causal, nemo, nanotron)
}


def _megatron(x: Dims, share_of_scores: float) -> float:
    projections = x.heads * x.head_dim / x.hidden
    gate = 1.5 if x.gated else 1.0
    attention = (1 + x.kv_heads / x.heads + share_of_scores * x.seq / x.hidden) * projections
    mlp = x.top_k * gate * x.ffn / x.hidden
    return (
        12 * x.batch * x.seq * x.layers * x.hidden**2
        * (attention + mlp + x.vocab / (2 * x.layers * x.hidden))
    )  # fmt: skip
