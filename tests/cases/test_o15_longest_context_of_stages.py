"""O15: the longest context is what the tightest stage holds. Qwen3-Coder-30B-A3B: 48 layers, 4 key heads of 128.

98,304 B a token, 24.0 GiB for 262,144 tokens; 3.18 GiB hold 34,730 +- 16 tokens (an engine reported 34,736). Stages of
16 and 32 layers: 65,536 B a token on the second, 16.0 GiB. Source: vllm#34076.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from torchperf import configs, hardware
from torchperf.graph.inference import InferencePrecision
from torchperf.inference import Binder
from torchperf.inference_memory import cache_of
from torchperf.inference_planner import InferencePlanner

GIB = 2**30
LENGTH = 262_144
NEED = ("--mode", "inference", "--gpu", "h100-sxm-80gb", "--input-len", LENGTH - 144, "--output-len", 144)


@pytest.fixture
def coder(tmp_path: Path) -> Path:
    """The widths of Qwen3-30B-A3B, with more positions."""
    config = {**configs.load("qwen3-30b-a3b"), "max_position_embeddings": LENGTH}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return tmp_path


def test_o15_whole(priced, coder) -> None:
    answer = priced(coder, *NEED, "--tp", 1)
    assert answer["kv_bytes_per_token"] == answer["kv_bytes_per_token_per_gpu"] == 98_304
    (row,) = answer["kv"]
    assert row["request_bytes"] == 24 * GIB
    memory = answer["memory_bytes"]
    assert answer["verdict"] == "does not fit"
    assert answer["max_context"] == pytest.approx(memory["pool"] / 98_304, abs=16)


def test_o15_in_what_is_left(coder) -> None:
    planner = InferencePlanner(
        Binder(str(coder)), hardware.load_system("dgx-h100"), hardware.load_runtime("vllm"), InferencePrecision()
    )
    cache = cache_of(planner, planner.lowered("decode", {"batch": 1, "kv": 1000}).facts)
    assert cache.longest(3.18 * GIB) == pytest.approx(34_730, abs=16)


def test_o15_uneven_stages(priced, coder) -> None:
    answer = priced(coder, *NEED, "--pp", 2, "--pp-split", "16,32")
    assert answer["kv_bytes_per_token"] == 98_304
    assert answer["kv_bytes_per_token_per_gpu"] == 65_536
    memory = answer["memory_bytes"]
    assert (memory["stage"], memory["cache"]) == (1, 16 * GIB)
    even = priced(coder, *NEED, "--pp", 2)
    assert even["max_context"] == LENGTH
    assert even["memory_bytes"]["cache"] == 12 * GIB
    assert even["max_concurrency"] > answer["max_concurrency"]
