"""O01: attention counts, on whatever device the tensors were.

On CPU, `F.scaled_dot_product_attention` is an op that torch's own flop counter holds no formula for, and counts 0.
Source: pytorch issues 195460, 195801, 177188; 4 B H S S D forward, three times that with backward.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self, **options: object) -> None:
        super().__init__()
        self.options = options

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, **self.options)


def heads(number: int, length: int, device: str) -> torch.Tensor:
    return torch.empty(1, number, length, 64, device=device, requires_grad=True)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_o01(flops, device: str) -> None:
    q, k, v = (heads(12, 64, device) for _ in range(3))
    counted = flops(Attention(), (q, k, v))
    assert counted.forward == 12_582_912 == 4 * 1 * 12 * 64 * 64 * 64
    assert counted.model == 37_748_736


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_o01_one_tensor_for_all_three(flops, device: str) -> None:
    """`q = k = v` is one tensor: it is read as often, and costs the same."""
    q = heads(12, 64, device)
    assert flops(Attention(), (q, q, q)).model == 37_748_736


def test_o01_grouped_query(flops) -> None:
    q, k, v = heads(32, 128, "cpu"), heads(8, 128, "cpu"), heads(8, 128, "cpu")
    counted = flops(Attention(enable_gqa=True), (q, k, v))
    assert counted.forward == 134_217_728
    assert counted.model == 402_653_184


def test_o01_causal(flops) -> None:
    """`is_causal` changes the causal count alone."""
    q, k, v = (heads(12, 64, "cpu") for _ in range(3))
    assert flops(Attention(is_causal=True), (q, k, v)).forward == 12_582_912
