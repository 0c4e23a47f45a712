"""O13: a latent cache is kv_lora_rank + qk_rope_head_dim elements a layer, whole on every rank.

DeepSeek-V3: 61 (512 + 64) 2 = 70,272 B a token, not 124,928 (2 x 512), 3,997,696 (128 heads) or 8,784 (shared by TP).
DeepSeek-V2-Lite, 27 layers: 31,104 B. Sources: LMCache#688 and #694, TensorRT-LLM#16707, panbanda/higgs#254.
"""

from __future__ import annotations

import pytest

NEED = ("--mode", "inference", "--gpu", "h200-sxm-141gb", "--input-len", 1000, "--output-len", 2)


@pytest.mark.parametrize("tp", [1, 8])
def test_o13_deepseek_v3(priced, tp: int) -> None:
    answer = priced("deepseek-v3", *NEED, "--tp", tp, "--precision", "fp8")
    assert answer["kv_bytes_per_token"] == answer["kv_bytes_per_token_per_gpu"] == 70_272 == 61 * (512 + 64) * 2
    (row,) = answer["kv"]
    assert (row["kind"], row["layers"], row["request_bytes"]) == ("latent", 61, 1002 * 70_272)


def test_o13_attention_of_its_own(priced) -> None:
    """8 groups: a request lies on one rank, not on all: nearly 8 times as many fit."""
    need = ("deepseek-v2-lite", *NEED)
    copies = priced(*need, "--tp", 8)
    own = priced(*need, "--attention-dp", 8, "--ep", 8)
    assert copies["num_gpus"] == own["num_gpus"] == 8
    assert copies["kv_bytes_per_token_per_gpu"] == own["kv_bytes_per_token_per_gpu"] == 31_104
    assert own["max_concurrency"] % 8 == 0
    assert 7 * copies["max_concurrency"] < own["max_concurrency"] <= 8 * copies["max_concurrency"]


def test_o13_deepseek_v2_lite(priced) -> None:
    assert priced("deepseek-v2-lite", *NEED)["kv_bytes_per_token"] == 31_104
