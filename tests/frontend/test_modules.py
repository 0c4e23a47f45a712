"""Models by their dims: the parameters that follow, what a capture holds, and what is refused."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from torchperf.frontend.modules.spec import ModelSpec, capture_of
from torchperf.graph.errors import TorchperfError

SMALL = {"layers": 3, "hidden": 64, "heads": 4, "vocab": 96, "positions": 32}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHPERF_CACHE", str(tmp_path))


def _count(spec: ModelSpec, seq: int = 32) -> int:
    return sum(math.prod(p.shape) for p in capture_of(spec, batch=2, seq=seq).facts.parameters)


def test_megatron_gpt_has_12_l_h_squared_and_its_small_terms() -> None:
    """L (12 h^2 + 13 h) + V h + s h + 2 h: weights, biases and norms of a layer, embeddings, the last norm."""
    l, h, v, s = 3, 64, 96, 32  # noqa: E741
    assert _count(ModelSpec.of("gpt", "gpt", SMALL)) == l * (12 * h * h + 13 * h) + v * h + s * h + 2 * h


def test_without_biases_a_norm_is_its_weight_alone() -> None:
    l, h, v, s = 3, 64, 96, 32  # noqa: E741
    spec = ModelSpec.of("gpt", "gpt", {**SMALL, "bias": False, "fp32_logits": False})
    assert _count(spec) == l * (12 * h * h + 2 * h) + v * h + s * h + h


@pytest.mark.parametrize(
    ("switch", "more"),
    [
        ({"tied": False}, 96 * 64),
        ({"kv_heads": 2}, -3 * (2 * 32 * 64 + 2 * 32)),  # 32 fewer rows of keys and of values, with their biases
        ({"embedding_norm": True}, 2 * 64),
        ({"qk_norm": True}, 3 * 4 * 16),
        ({"activation": "swiglu"}, 3 * (256 * 64 + 256)),
    ],
)
def test_each_switch_changes_its_own_parameters(switch: dict[str, object], more: int) -> None:
    plain = _count(ModelSpec.of("gpt", "gpt", SMALL))
    assert _count(ModelSpec.of("gpt", "gpt", {**SMALL, **switch})) == plain + more


def test_experts_take_top_k_rows_each() -> None:
    spec = ModelSpec.of("moe", "gpt", {**SMALL, "bias": False, "experts": 8, "top_k": 2})
    graph = capture_of(spec, batch=2, seq=32).bind(batch=2, seq=32)
    rows = {
        int(op.inputs[0].shape[0])
        for op, _ in graph.ops()
        if op.name == "aten._grouped_mm.default" and op.phase == "forward"
    }
    assert rows == {2 * 32 * 2}


def test_dropout_is_recorded_where_the_model_has_it() -> None:
    def dropouts(p: float) -> int:
        spec = ModelSpec.of("gpt", "gpt", {**SMALL, "dropout": p, "attention_dropout": p})
        graph = capture_of(spec, batch=2, seq=32).bind(batch=2, seq=32)
        attended = [op.attr("dropout_p", 0.0) for op, _ in graph.ops() if op.name == "torchperf.attention.default"]
        assert set(attended) == {p}
        return sum(count for op, count in graph.ops() if op.name == "aten.native_dropout.default")

    assert (dropouts(0.0), dropouts(0.1)) == (0, 7)  # two a layer, one behind the embedding


def test_a_capture_binds_at_other_sizes_and_comes_from_the_cache() -> None:
    spec = ModelSpec.of("gpt", "gpt", SMALL)
    first = capture_of(spec, batch=2, seq=32)
    assert capture_of(spec, batch=4, seq=128) is first
    assert first.bind(batch=4, seq=128).size("seq") == 128


def test_multi_token_prediction_adds_a_layer_a_product_and_three_norms() -> None:
    config = {
        "model_type": "deepseek_v3", "num_hidden_layers": 3, "first_k_dense_replace": 1, "hidden_size": 64,
        "intermediate_size": 128, "moe_intermediate_size": 32, "n_routed_experts": 8, "num_experts_per_tok": 2,
        "n_group": 1, "topk_group": 1, "num_attention_heads": 4, "num_key_value_heads": 4, "q_lora_rank": 32,
        "kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 16, "v_head_dim": 16, "vocab_size": 96,
        "max_position_embeddings": 4096,
    }  # fmt: skip
    plain = ModelSpec.of("ds", "transformers", config)
    deeper = ModelSpec.of("ds", "transformers", {**config, "num_hidden_layers": 4})
    layer = _count(deeper) - _count(plain)
    assert _count(ModelSpec.of("ds", "transformers", config, mtp=1)) == _count(plain) + layer + 2 * 64 * 64 + 3 * 64


def test_an_unknown_kind_or_dim_is_refused() -> None:
    with pytest.raises(TorchperfError, match="unknown kind"):
        ModelSpec.of("x", "rnn", {})
    with pytest.raises(TorchperfError, match="has no dim `width`"):
        capture_of(ModelSpec.of("x", "gpt", {**SMALL, "width": 3}))
