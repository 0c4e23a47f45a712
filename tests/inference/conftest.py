"""Models of a few wide layers, captured once, and engines on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import pytest

from torchperf import hardware
from torchperf.frontend.capture import capture
from torchperf.frontend.hf import from_config
from torchperf.frontend.inference import for_mode
from torchperf.graph.graph import Graph
from torchperf.graph.inference import InferencePlan, InferencePrecision
from torchperf.inference_planner import InferencePlanner

WIDE = {
    "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11264, "num_hidden_layers": 4,
    "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 16384,
    "tie_word_embeddings": False,
}  # fmt: skip
CONFIGS: dict[str, dict[str, Any]] = {
    "dense": {"model_type": "llama", **WIDE},
    "window": {"model_type": "mistral", **WIDE, "sliding_window": 512},
    "experts": {
        "model_type": "qwen3_moe", **WIDE, "num_experts": 16, "num_experts_per_tok": 2, "moe_intermediate_size": 2048,
    },
    "latent": {
        "model_type": "deepseek_v3", **WIDE, "hidden_size": 2048, "intermediate_size": 4096, "num_attention_heads": 16,
        "num_key_value_heads": 16, "moe_intermediate_size": 1024, "n_shared_experts": 1, "n_routed_experts": 16,
        "num_experts_per_tok": 4, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1, "q_lora_rank": 512,
        "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128, "head_dim": 64,
    },
}  # fmt: skip


@cache
def _graphs(name: str, mode: str) -> list[Graph]:
    return []


def bind(name: str) -> Callable[[str, Mapping[str, int]], Graph]:
    """(mode, sizes) -> the bound graph, captured where no earlier one holds these sizes."""

    def bound(mode: str, sizes: Mapping[str, int]) -> Graph:
        known = _graphs(name, mode)
        found = next((graph for graph in known if graph.holds(sizes)), None)
        if found is None:
            found = capture(for_mode(from_config(CONFIGS[name], name), mode), mode, sizes)
            known.append(found)
        return found.bind(**sizes)

    return bound


Make = Callable[..., InferencePlanner]


@pytest.fixture
def planner() -> Make:
    """`planner("dense", runtime="vllm", tp=2, weights="fp8")`."""

    def make(
        name: str, *, runtime: str = "vllm", system: str = "dgx-h100", weights: str = "bf16",
        activations: str | None = None, kv: str = "bf16", **plan: Any,
    ) -> InferencePlanner:  # fmt: skip
        return InferencePlanner(
            bind(name), hardware.load_system(system), hardware.load_runtime(runtime),
            InferencePrecision(weights, activations, kv), InferencePlan(**plan),
        )  # fmt: skip

    return make
