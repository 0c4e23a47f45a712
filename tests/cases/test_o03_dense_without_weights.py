"""O03: a plain dense transformers model, with no weights and no mask of the user's.

On meta, transformers reads a number out of the mask ("Tensor.item() cannot be called on meta tensors").
Source: calflops pull request 66, transformers issues 44984, 43957.
"""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM


@pytest.mark.parametrize("device", ["meta", "cpu"])
def test_o03(flops, device: str) -> None:
    config = LlamaConfig(
        vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2,
    )  # fmt: skip
    with torch.device(device):
        model = LlamaForCausalLM(config)
    counted = flops(model, seq_len=32)
    assert counted.forward == 6_291_456 == 5_767_168 + 524_288
    assert counted.model == 3 * 6_291_456
