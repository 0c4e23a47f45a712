"""O12: the width of a head is what the model has, not hidden size / heads.

Sources: LMCache#688, NVIDIA Model-Optimizer#2482, KolosalAI#2.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from torchperf import configs

SMALL = {
    "hidden_size": 5120, "intermediate_size": 32_768, "num_hidden_layers": 40, "num_attention_heads": 32,
    "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 131_072, "max_position_embeddings": 32_768,
    "sliding_window": None,
}  # fmt: skip
NEED = ("--mode", "inference", "--gpu", "h100-sxm-80gb", "--tp", 2, "--input-len", 1000, "--output-len", 2)


@pytest.mark.parametrize(
    ("model", "nbytes", "derived"), [("qwen3-32b", 262_144, 163_840), ("qwen3-4b", 147_456, 92_160)]
)
def test_o12_qwen3(priced, model: str, nbytes: int, derived: int) -> None:
    config = configs.load(model)
    width = config["hidden_size"] // config["num_attention_heads"]
    assert 4 * config["num_hidden_layers"] * config["num_key_value_heads"] * width == derived
    assert priced(model, *NEED)["kv_bytes_per_token"] == nbytes


def test_o12_mistral_small_24b(priced, tmp_path: Path) -> None:
    """Its heads are narrower than 5120 / 32."""
    config = {**configs.load("mistral-7b"), **SMALL}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    answer = priced(tmp_path, *NEED)
    assert answer["parameters"] == pytest.approx(23.57e9, rel=1e-3)
    assert answer["kv_bytes_per_token"] == 163_840


def test_o12_gpt_oss_20b(priced) -> None:
    """24 layers, of which every second one keeps its last 128 tokens: 49,152 B a token while all are kept."""
    answer = priced("gpt-oss-20b", *NEED)
    rows = {row["window"]: row for row in answer["kv"]}
    assert {window: row["layers"] for window, row in rows.items()} == {None: 12, 128: 12}
    assert 2 * sum(row["token_bytes"] for row in rows.values()) == 49_152
    assert 2 * rows[None]["request_bytes"] == 1002 * 49_152 / 2
    assert 2 * rows[128]["request_bytes"] == 128 * 49_152 / 2
