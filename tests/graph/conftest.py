"""Small captures of several families, each made once."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from torchperf.frontend import load
from torchperf.frontend.hf import from_config
from torchperf.graph.graph import Capture

SMALL = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "vocab_size": 128}
CONFIGS: dict[str, dict[str, Any]] = {
    "gpt2": {"n_embd": 64, "n_head": 4, "n_layer": 3, "vocab_size": 128, "n_positions": 256},
    "llama": {**SMALL, "num_hidden_layers": 3, "num_key_value_heads": 2, "max_position_embeddings": 512},
    "mixtral": {**SMALL, "num_hidden_layers": 2, "num_key_value_heads": 2, "num_local_experts": 4},
    # layers of two kinds, sliding and full attention, in turn
    "gemma3_text": {
        **SMALL, "num_hidden_layers": 6, "num_key_value_heads": 2, "head_dim": 16, "sliding_window": 32,
        "sliding_window_pattern": 3,
    },
    "mamba2": {
        "hidden_size": 64, "num_heads": 8, "head_dim": 16, "state_size": 16, "n_groups": 1, "num_hidden_layers": 2,
        "vocab_size": 128, "chunk_size": 32,
    },
    "t5": {
        "d_model": 64, "d_ff": 96, "d_kv": 16, "num_heads": 4, "num_layers": 2, "vocab_size": 128,
        "decoder_start_token_id": 0,
    },
    "vit": {
        **SMALL, "num_hidden_layers": 2, "image_size": 32, "patch_size": 8,
        "architectures": ["ViTForImageClassification"],
    },
}  # fmt: skip


@cache
def captured(family: str) -> Capture:
    raw = {"model_type": family, **CONFIGS[family]}
    return load.extend(None, from_config(raw, family), "train", {})


@pytest.fixture(params=sorted(CONFIGS))
def capture(request: pytest.FixtureRequest) -> Capture:
    """Each family in turn."""
    return captured(str(request.param))


@pytest.fixture(scope="session")
def small() -> Capture:
    """One of them, for tests that need no more."""
    return captured("llama")


@pytest.fixture(scope="session")
def stack() -> Capture:
    """A stack whose layers are of two kinds."""
    return captured("gemma3_text")
