"""O02: experts that run through `grouped_mm` are counted, those that are chosen, in fp32 too.

Source: own count; the class of mistake of pytorch issue 195460 and prime-rl issue 778. Torch's own `_grouped_mm`
refuses fp32 on meta.
"""

from __future__ import annotations

import pytest
import torch
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

import torchperf

T = 32
EXPECTED = 4_784_128
WRONG = {
    2_686_976: "grouped_mm and attention uncounted",
    3_211_264: "grouped_mm uncounted",
    4_259_840: "attention uncounted",
    9_502_720: "all 8 experts",
}


def model(dtype: torch.dtype) -> Qwen3MoeForCausalLM:
    config = Qwen3MoeConfig(
        vocab_size=256, hidden_size=64, intermediate_size=128, moe_intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=16, num_experts=8, num_experts_per_tok=2,
        tie_word_embeddings=False,
    )  # fmt: skip
    with torch.device("meta"):
        return Qwen3MoeForCausalLM._from_config(config, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_o02(dtype: torch.dtype) -> None:
    """Whatever dtype the module holds, at whatever precision it runs; every op has a rule."""
    capture = torchperf.capture(model(dtype), seq_len=32)
    for precision in ("fp32", "bf16-mixed"):
        answer = torchperf.estimate(capture, gpu="h100-sxm-80gb", seq_len=32, precision=precision, strict=True)
        counted = answer.flops_noncausal.forward
        assert counted not in WRONG, WRONG.get(counted)
        assert counted == EXPECTED
        assert answer.flops_noncausal.model == 3 * EXPECTED


def test_o02_parts() -> None:
    """Projections, attention core, router, chosen experts and head, each by itself."""
    inspection = torchperf.inspect(torchperf.capture(model(torch.float32), seq_len=32), seq_len=32, depth=4)
    forward = {row.module: row.flops_forward for row in inspection.rows}
    attention = 1_572_864 + 524_288 * (T + 1) // (2 * T)  # the causal triangle of the core
    assert forward["model.layers.*.self_attn"] == attention
    assert forward["model.layers.*.mlp"] == 65_536 + 1_572_864
    assert forward["lm_head"] == 1_048_576
    assert forward[""] == attention + 65_536 + 1_572_864 + 1_048_576
    assert EXPECTED == 1_572_864 + 524_288 + 65_536 + 1_572_864 + 1_048_576
