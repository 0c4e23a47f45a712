"""Key-value caches of published models to the byte: cases O11 to O15, from what each model caches when it runs.

Each case names its source. Wrong answers that others gave are listed beside the right one.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from torchperf import configs
from torchperf.frontend.capture import capture
from torchperf.frontend.hf import from_config
from torchperf.frontend.inference import for_mode
from torchperf.graph.cache import bytes_per_token, growing_bytes, kv_bytes
from torchperf.graph.graph import Facts

GIB = 2**30
MISTRAL_SMALL = {
    "model_type": "mistral", "num_hidden_layers": 40, "hidden_size": 5120, "num_attention_heads": 32,
    "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 32768, "vocab_size": 131072, "sliding_window": None,
}  # fmt: skip
QWEN3_CODER = {
    **configs.load("qwen3-30b-a3b"), "max_position_embeddings": 262144,
}  # fmt: skip


@cache
def facts(name: str) -> Facts:
    """One decode step, recorded once."""
    config: dict[str, Any] = {"mistral-small-24b": MISTRAL_SMALL, "qwen3-coder-30b": QWEN3_CODER}.get(name) or (
        configs.load(name)
    )
    subject = for_mode(from_config(config, name), "decode")
    subject.fixed = "one size is enough for this test"
    return capture(subject, "decode", {"batch": 1, "kv": 200}).facts


# bytes a token in bf16, and what it is not
TOKEN = {
    "llama-3-70b": (327_680, {2_621_440: "64 query heads"}),  # vllm#8089
    "llama-2-7b": (524_288, {}),  # TensorRT-LLM#1400: 69,524,783,104 bytes for 132,608 tokens
    "llama-3-8b": (131_072, {}),
    "llama-3.1-405b": (516_096, {}),
    "qwen3-32b": (262_144, {163_840: "hidden size / heads"}),  # LMCache#688
    "qwen3-4b": (147_456, {}),
    "mistral-small-24b": (163_840, {204_800: "hidden size / heads"}),
    "gpt-oss-20b": (49_152, {34_560: "hidden size / heads"}),  # every layer, windows not yet full
    "deepseek-v3": (70_272, {124_928: "latent twice", 3_997_696: "128 heads"}),  # LMCache#688 and #694
    "deepseek-v2-lite": (31_104, {}),  # measured in panbanda/higgs PR#254
    "qwen3-coder-30b": (98_304, {}),  # vllm#34076
}


@pytest.mark.parametrize("name", TOKEN)
def test_bytes_of_a_token(name: str) -> None:
    """O11, O12, O13, O15."""
    right, wrong = TOKEN[name]
    found = bytes_per_token(facts(name), 16)
    assert found not in wrong, wrong.get(found)
    assert found == right


def test_o11_a_request_of_3000_tokens() -> None:
    assert kv_bytes(facts("llama-3-70b"), 16, 1, 3000) == pytest.approx(0.983e9, rel=1e-3)


@pytest.mark.parametrize("name", ["deepseek-v3", "deepseek-v2-lite"])
@pytest.mark.parametrize("tp", [1, 8])
def test_o13_tensor_parallelism_does_not_shard_a_latent(name: str, tp: int) -> None:
    """8,784 bytes a token and GPU would be the latent divided by eight."""
    assert bytes_per_token(facts(name), 16, tp=tp) == TOKEN[name][0]


def test_tensor_parallelism_shards_heads_as_far_as_there_are() -> None:
    per_gpu = {tp: bytes_per_token(facts("llama-3-70b"), 16, tp=tp) for tp in (2, 8, 16)}
    assert per_gpu == {2: 163_840, 8: 40_960, 16: 40_960}


def test_o14_windows() -> None:
    """Gemma 3 4B, one sequence of 131,072: five layers keep it all, 29 their last 1,024 (ollama PR#17037)."""
    found = facts("gemma-3-4b-text")
    full = [i for entry in found.cache if not entry.window for i in entry.layers]
    local = [i for entry in found.cache if entry.window == 1024 for i in entry.layers]
    assert (len(full), len(local)) == (5, 29)
    assert kv_bytes(found, 16, 1, 131_072, layers=full) == 2_560 * 2**20
    assert kv_bytes(found, 16, 1, 131_072, layers=local) == 116 * 2**20
    whole = kv_bytes(found, 16, 1, 131_072)
    assert 2.6 * GIB <= whole <= 2.8 * GIB


def test_o15_longest_context_and_the_tightest_stage() -> None:
    """262,144 tokens take 24 GiB; 3.18 GiB hold 34,730; of stages with 16 and 32 layers the second bounds."""
    found = facts("qwen3-coder-30b")
    assert kv_bytes(found, 16, 1, 262_144) == 24 * GIB
    assert int(3.18 * GIB) // bytes_per_token(found, 16) == pytest.approx(34_730, abs=16)
    stages = [growing_bytes(found, 16, 1, 262_144, layers=range(*ends)) for ends in ((0, 16), (16, 48))]
    assert stages == [8 * GIB, 16 * GIB]


def test_o16_weights() -> None:
    """Llama 3.1 8B in bf16 is 14.96 GiB; 3.81 GiB beside it hold about 31,200 tokens (vllm#10517)."""
    found = facts("llama-3.1-8b")
    assert sum(p.numel for p in found.parameters) * 2 / GIB == pytest.approx(14.96, abs=0.005)
    assert int(3.81 * GIB) // bytes_per_token(found, 16) == pytest.approx(31_200, abs=20)
