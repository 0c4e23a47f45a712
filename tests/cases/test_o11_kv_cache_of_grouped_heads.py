"""O11: the cache has the key and value heads of the config, not the query heads.

Llama-3-70B: 80 layers, 8 of 64 heads of 128 are cached: 327,680 B a token in bf16, not 2,621,440. Source: vllm#8089;
524,288 B of Llama-2-7B is 69,524,783,104 B for 132,608 tokens in a runtime's log, TensorRT-LLM#1400.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

MINIMAX_M2 = {
    "architectures": ["MiniMaxM2ForCausalLM"], "model_type": "minimax_m2", "hidden_size": 3072,
    "intermediate_size": 1536, "num_hidden_layers": 62, "num_attention_heads": 48, "num_key_value_heads": 8,
    "head_dim": 128, "num_local_experts": 256, "num_experts_per_tok": 8, "vocab_size": 200_064, "rotary_dim": 64,
    "rope_theta": 5_000_000, "max_position_embeddings": 196_608, "tie_word_embeddings": False,
}  # fmt: skip
INFERENCE = ("--mode", "inference", "--gpu", "h100-sxm-80gb")


def test_o11_a_request_of_llama_3_70b(priced) -> None:
    answer = priced("llama-3-70b", *INFERENCE, "--tp", 8, "--input-len", 2900, "--output-len", 100)
    assert answer["kv_bytes_per_token"] == 327_680
    assert answer["kv_bytes_per_token_per_gpu"] == 327_680 / 8
    (row,) = answer["kv"]
    assert (row["kind"], row["layers"], row["window"]) == ("kv", 80, None)
    assert 8 * row["request_bytes"] == 3000 * 327_680
    assert 8 * row["request_bytes"] == pytest.approx(0.983e9, rel=1e-3)


@pytest.mark.parametrize(
    ("model", "tp", "nbytes"),
    [("llama-2-7b", 1, 524_288), ("llama-3-8b", 1, 131_072), ("llama-3.1-405b", 8, 516_096)],
)
def test_o11_bytes_of_a_token(priced, model: str, tp: int, nbytes: int) -> None:
    answer = priced(model, *INFERENCE, "--tp", tp, "--input-len", 1000, "--output-len", 2)
    assert answer["kv_bytes_per_token"] == nbytes
    assert answer["kv_bytes_per_token_per_gpu"] == nbytes / tp


def test_o11_minimax_m2(priced, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(MINIMAX_M2), encoding="utf-8")
    need = (*INFERENCE, "--tp", 8, "--precision", "fp8", "--input-len", 1000, "--output-len", 2)
    answer = priced(tmp_path, *need)
    assert answer["parameters"] == pytest.approx(228.7e9, rel=1e-3)
    assert answer["kv_bytes_per_token"] == 253_952


def test_o11_heads_that_tp_does_not_divide_are_kept_twice(priced) -> None:
    """8 key heads on 16 ranks: one on each, as on 8 ranks."""
    need = ("llama-3-70b", *INFERENCE, "--input-len", 1000, "--output-len", 2)
    shared, copied = (priced(*need, "--tp", tp)["kv_bytes_per_token_per_gpu"] for tp in (8, 16))
    assert shared == copied == 327_680 / 8


def test_o11_the_cache_in_fewer_bits(priced) -> None:
    need = ("llama-3-8b", *INFERENCE, "--input-len", 1000, "--output-len", 2)
    kept = {kv: priced(*need, "--kv-precision", kv)["kv_bytes_per_token"] for kv in ("bf16", "fp8", "int4")}
    assert (kept["bf16"], kept["fp8"]) == (131_072, 65_536)
    assert 131_072 / 4 < kept["int4"] < 131_072 / 3  # with scales
