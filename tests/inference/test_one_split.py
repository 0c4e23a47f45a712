"""Layers of one name are split alike, whichever block they run, and every pass of an engine splits as the others do."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from transformers import DeepseekV2Config, DeepseekV2ForCausalLM, GptOssConfig, GptOssForCausalLM

import torchperf
from torchperf.graph.graph import Capture
from torchperf.graph.inference import InferencePlan, InferencePrecision
from torchperf.hardware import load_runtime
from torchperf.inference_program import local_program

LAYERS = 4
SIZES = {
    "prefill": ({"batch": 1, "seq": 64}, {"batch": 2, "seq": 700}),
    "decode": ({"batch": 2, "kv": 40}, {"batch": 2, "kv": 900}, {"batch": 64, "kv": 900}),
}


def _gpt_oss() -> torch.nn.Module:
    """Windows and full attention in turn: two blocks under one name."""
    return GptOssForCausalLM(
        GptOssConfig(
            num_hidden_layers=LAYERS, hidden_size=2880, intermediate_size=2880, vocab_size=4096,
            num_attention_heads=64, num_key_value_heads=8, head_dim=64, num_local_experts=8,
            num_experts_per_tok=2, sliding_window=32,
            layer_types=["sliding_attention", "full_attention"] * 2, max_position_embeddings=4096,
        )
    )  # fmt: skip


def _deepseek() -> torch.nn.Module:
    """A dense layer before those with experts."""
    return DeepseekV2ForCausalLM(
        DeepseekV2Config(
            num_hidden_layers=LAYERS, hidden_size=2048, intermediate_size=10944, moe_intermediate_size=1408,
            vocab_size=4096, num_attention_heads=16, num_key_value_heads=16, kv_lora_rank=512, q_lora_rank=None,
            qk_rope_head_dim=64, qk_nope_head_dim=128, v_head_dim=128, n_routed_experts=8,
            num_experts_per_tok=2, n_shared_experts=1,
            first_k_dense_replace=1, n_group=1, topk_group=1, head_dim=64,
        )
    )  # fmt: skip


@pytest.fixture(scope="module", params=[_gpt_oss, _deepseek])
def captures(request: pytest.FixtureRequest) -> dict[str, Capture]:
    with torch.device("meta"):
        model = request.param()
    return {mode: torchperf.capture(model, mode=mode) for mode in SIZES}


def test_all_layers_are_split(captures: dict[str, Capture]) -> None:
    """Two all_reduces a layer, of its attention and of what follows, in every mode and at every size."""
    for mode, sizes in SIZES.items():
        for at in sizes:
            graph = local_program(
                captures[mode].bind(**at), InferencePlan(tp=2), InferencePrecision(), load_runtime("vllm")
            )
            found: Counter[str] = Counter()
            for segment, block in ((s, graph.blocks[s.block]) for s in graph.segments):
                found[segment.module] += sum("all_reduce" in op.name for op in block.ops)
            layers = {module: n for module, n in found.items() if ".layers." in module}
            assert len(layers) == LAYERS, (mode, at)
            assert set(layers.values()) == {2}, (mode, at, layers)


def test_every_rank_holds_its_share_of_each_layer(captures: dict[str, Capture]) -> None:
    for mode, sizes in SIZES.items():
        whole = captures[mode].bind(**sizes[0])
        local = local_program(whole, InferencePlan(tp=2), InferencePrecision(), load_runtime("vllm"))
        before = {p.names[0]: p.numel for p in whole.facts.parameters}
        after = {p.names[0]: p.numel for p in local.facts.parameters}
        for layer in range(LAYERS):
            own = [n for n in before if f".layers.{layer}." in n and n.endswith((".o_proj.weight", "down_proj.weight"))]
            own += [n for n in before if f".layers.{layer}." in n and n.endswith("experts.down_proj")]
            assert len(own) >= 2
            assert all(after[n] * 2 == before[n] for n in own), (mode, layer)
