"""Recipes: defaults that are mended, and module code that is replaced, with the work that each must come to."""

from __future__ import annotations

import sys
from collections import Counter
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest

from torchperf.annotate import work
from torchperf.graph.graph import Graph

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from torchperf.frontend import hf, recipes  # noqa: E402
from torchperf.frontend.capture import capture  # noqa: E402
from torchperf.frontend.inference import for_mode  # noqa: E402
from torchperf.frontend.recipes import configs, overrides  # noqa: E402
from torchperf.frontend.recipes.scan_op import scan  # noqa: E402
from torchperf.partition.factors import propagate  # noqa: E402
from torchperf.partition.infer import infer  # noqa: E402
from torchperf.partition.prepare import prepare  # noqa: E402

BATCH, SEQ = 2, 16
TEXT: dict[str, Any] = {
    "vocab_size": 96, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "max_position_embeddings": 64,
}  # fmt: skip
MOE = {"moe_intermediate_size": 32}
JETMOE = {**TEXT, "num_local_experts": 4, "num_experts_per_tok": 2, "num_key_value_heads": 2, "kv_channels": 16}
LLAMA4 = {
    **TEXT, "num_local_experts": 4, "num_experts_per_tok": 1, "num_key_value_heads": 4, "head_dim": 16,
    "intermediate_size_mlp": 96, "interleave_moe_layer_step": 1,
}  # fmt: skip
DBRX = {
    "d_model": 64, "n_heads": 4, "n_layers": 2, "max_seq_len": 64, "vocab_size": 96,
    "attn_config": {"kv_n_heads": 2},
    "ffn_config": {"hidden_size": 64, "ffn_hidden_size": 32, "moe_num_experts": 4, "moe_top_k": 2},
}  # fmt: skip
LONGCAT = {
    "vocab_size": 96, "hidden_size": 64, "num_layers": 2, "num_attention_heads": 4, "ffn_hidden_size": 96,
    "q_lora_rank": 32, "kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16,
    "head_dim": 8, "moe_topk": 3, "n_routed_experts": 4, "zero_expert_num": 2, "expert_ffn_hidden_size": 32,
}  # fmt: skip
MAMBA = {"vocab_size": 96, "hidden_size": 32, "state_size": 8, "num_hidden_layers": 2, "time_step_rank": 4}
ASSISTED = {"num_key_value_heads": 2, "head_dim": 16, "global_head_dim": 16}
SMALL: dict[str, dict[str, Any]] = {
    "dots1": {**TEXT, **MOE, "num_key_value_heads": 4, "first_k_dense_replace": 1},
    "deepseek_v2": {**TEXT, **MOE, "n_routed_experts": 8, "q_lora_rank": 32, "kv_lora_rank": 32},
    "hunyuan_v1_dense": TEXT,
    "hunyuan_v1_moe": {**TEXT, "num_experts": 4, "moe_topk": 2},
    "ministral": {**TEXT, "num_key_value_heads": 2},
    "nemotron": TEXT,
    "lfm2_moe": {**TEXT, **MOE, "num_hidden_layers": 4, "num_key_value_heads": 2, "num_experts": 4,
                 "num_experts_per_tok": 2},
    "cohere_compass_text": TEXT,
    "dbrx": DBRX,
    "mpt": {"d_model": 64, "n_heads": 4, "n_layers": 2, "vocab_size": 96, "max_seq_len": 64},
    "llama4": {"text_config": LLAMA4},
    "musicgen": {"decoder": {"vocab_size": 32, "hidden_size": 64, "num_hidden_layers": 2, "ffn_dim": 96,
                             "num_attention_heads": 4}},
    "xmod": {**TEXT, "languages": ["en_XX", "de_DE"]},
    "xlm": {"vocab_size": 96, "emb_dim": 64, "n_layers": 2, "n_heads": 4, "max_position_embeddings": 64},
    "rwkv": {"vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 2, "context_length": 64},
    "gemma4_assistant": {"text_config": {**TEXT, **ASSISTED, "model_type": "gemma4_text"},
                         "backbone_hidden_size": 32},
}  # fmt: skip


def graph_of(kind: str, contents: dict[str, Any], mode: str = "train") -> Graph:
    """The bound graph of a small model at one size."""
    subject = for_mode(hf.from_config({"model_type": kind, **contents}, kind), mode)
    sizes = {"batch": BATCH, "seq": SEQ, "kv": SEQ}
    graph = capture(replace(subject, fixed="one size"), mode, {name: sizes[name] for name in subject.sizes})
    return graph.bind(**{name: low for name, low, _, _ in graph.facts.ranges})


def grouped(graph: Graph, phase: str = "forward") -> int:
    return sum(n * work(op).flops for op, n in graph.ops() if "_grouped_mm" in op.name and op.phase == phase)


@pytest.mark.parametrize("kind", SMALL)
def test_a_default_that_is_none_is_filled_in_and_told(kind: str) -> None:
    graph = graph_of(kind, SMALL[kind])
    assert all(work(op).known for op, _ in graph.ops())
    assert graph.facts.unattributed == 0
    told = "\n".join(graph.facts.assumptions)
    for key in configs._MISSING.get(kind, {}):
        assert key in told


@pytest.mark.parametrize("kind", ["dots1", "deepseek_v2", "nemotron", "ministral", "bamba", "lfm2_moe", "dbrx"])
def test_a_value_that_the_config_brings_is_kept(kind: str) -> None:
    missing = configs._MISSING[kind].items()
    brought = {key: dict.fromkeys(value, 3) if isinstance(value, dict) else 3 for key, value in missing}
    assert recipes.filled(kind, brought) == (brought, [])


def test_parameters_that_take_no_part_are_told() -> None:
    told = graph_of("xmod", {**SMALL["xmod"], "languages": ["en_XX", "de_DE", "fr_XX"]}).facts.assumptions
    assert any("of the parameters take no part" in line and "de_DE" in line for line in told)
    assert not any("take no part" in line for line in graph_of("ministral", SMALL["ministral"]).facts.assumptions)


def test_a_composite_config_gives_its_text_part() -> None:
    graph = graph_of("llama4", SMALL["llama4"])
    assert graph.facts.model_class == "Llama4ForCausalLM"
    assert "the llama4_text part of the config alone is captured" in graph.facts.assumptions


@pytest.mark.parametrize(
    ("kind", "contents", "flops"),
    [
        # two layers; per routed row: 2 x 64 x (2 x 96) + 2 x 96 x 64 of the MLP, 2 x 64 x 32 + 2 x 32 x 64 of attention
        ("jetmoe", JETMOE, 2 * (BATCH * SEQ * 2) * (2 * 64 * 192 + 2 * 96 * 64 + 4 * 64 * 32)),
        ("llama4", {"text_config": LLAMA4}, 2 * (BATCH * SEQ) * (2 * 64 * 192 + 2 * 96 * 64)),
        ("dbrx", DBRX, 2 * (BATCH * SEQ * 2) * 3 * 2 * 64 * 32),
        # 4 of 6 experts compute: 2 of the 3 that a token takes
        ("longcat_flash", LONGCAT, 2 * (BATCH * SEQ * 2) * 3 * 2 * 64 * 32),
    ],
)
def test_experts_run_on_the_tokens_routed_to_them(kind: str, contents: dict[str, Any], flops: int) -> None:
    graph = graph_of(kind, contents)
    assert grouped(graph) == flops
    assert grouped(graph, "backward") == 2 * flops
    assert not any("experts" in guess for guess in graph.facts.guesses)
    assert any("experts" in line for line in graph.facts.assumptions)


def test_a_selective_scan_is_one_op_with_the_flops_of_its_loop() -> None:
    graph = graph_of("mamba", MAMBA)
    channels, states = 64, 8
    scans = [(work(op), n) for op, n in graph.ops() if op.name.startswith("torchperf.selective_scan")]
    assert sum(n for _, n in scans) == 4  # two layers, forward and backward
    forward = BATCH * SEQ * channels * (7 * states + 3)
    assert sum(n * w.flops for w, n in scans) == 2 * (forward + 2 * forward)
    assert {(w.engine, w.flops, w.flops_executed) for w, _ in scans} == {
        ("vector", forward, forward), ("vector", 2 * forward, 3 * forward)
    }  # fmt: skip
    assert any("MambaMixer" in line for line in graph.facts.assumptions)


def test_a_scan_is_split_by_its_channels() -> None:
    factors = propagate(graph_of("mamba", {**MAMBA, "hidden_size": 4096, "time_step_rank": 256}))
    prepared = prepare(factors)
    assert not factors.unresolved
    placement = infer(prepared, 2).placement
    flops = sum(n * sum(own) for n, own in zip(prepared.counts, prepared.flops, strict=True))
    saved = sum(n * block.flops for n, block in zip(prepared.counts, placement.blocks, strict=True))
    assert saved > 0.99 * flops / 2  # a head of 96 words is not worth its sum
    sums = [c for c in placement.collectives if c.kind == "all_reduce" and c.phase == "backward"]
    assert sums  # of the gradients of B and C, which all channels share


@pytest.mark.parametrize("mode", ["prefill", "decode"])
def test_a_scan_keeps_its_state_in_a_cache(mode: str) -> None:
    graph = graph_of("mamba", MAMBA, mode)
    assert {entry.kind for entry in graph.facts.cache} == {"state"}
    assert ("torchperf.selective_scan.default" in {op.name for op, _ in graph.ops()}) == (mode == "prefill")


def test_the_keys_of_an_indexer_are_cached() -> None:
    contents = {
        **TEXT, **MOE, "num_key_value_heads": 4, "q_lora_rank": 32, "kv_lora_rank": 32, "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 8, "v_head_dim": 16, "n_routed_experts": 8, "num_experts_per_tok": 2, "n_group": 1,
        "topk_group": 1, "first_k_dense_replace": 1, "index_n_heads": 4, "index_head_dim": 16, "index_topk": 4,
    }  # fmt: skip
    cached = graph_of("deepseek_v32", contents, "decode").facts.cache
    elements = {entry.module.rpartition(".")[2]: entry.elements for entry in cached}
    assert elements == {"indexer": 16, "self_attn": 32 + 8}


SHAPES = {
    "selective_scan": ((2, 4, 8), (2, 4, 8), (4, 3), (2, 3, 8), (2, 3, 8), (4,), (2, 4, 8), (4,)),
    "wkv": ((4,), (4,), (2, 8, 4), (2, 8, 4)),
    "gated_recurrence": ((2, 8, 4), (2, 8, 4)),
}


@pytest.mark.parametrize("name", SHAPES)
def test_a_scan_has_a_gradient_of_each_input(name: str) -> None:
    inputs = [torch.empty(shape, device="meta", requires_grad=True) for shape in SHAPES[name]]
    out, *states = scan(name, *inputs)
    out.sum().backward()
    assert all(tensor.grad is not None and tensor.grad.shape == tensor.shape for tensor in inputs)
    assert not any(state.requires_grad for state in states)


def test_overrides_are_undone() -> None:
    graph_of("jetmoe", JETMOE)
    file = sys.modules["transformers.models.jetmoe.modeling_jetmoe"]
    before = Counter(id(vars(getattr(file, o.owner))[o.name]) for o in overrides._every() if o.family == "jetmoe")
    with ExitStack() as stack:
        recipes.install(stack)
        own = [o for o in overrides._every() if o.family == "jetmoe"]
        inside = {o.name for o in own if vars(getattr(file, o.owner))[o.name] is o.by}
    after = Counter(id(vars(getattr(file, o.owner))[o.name]) for o in overrides._every() if o.family == "jetmoe")
    assert inside == {"forward"}
    assert before == after


def test_every_override_names_what_is_there() -> None:
    import importlib

    for override in overrides._every():
        file = importlib.import_module(override.file)
        owner = getattr(file, override.owner) if override.owner else file
        assert hasattr(owner, override.name), override
        assert hasattr(file, override.used), override


def test_rows_of_an_expert_need_no_data() -> None:
    """As many rows as tokens times top-k, at two lengths: no size of the data is read."""
    rows = {}
    for length in (8, 24):
        subject = hf.from_config({"model_type": "jetmoe", **JETMOE}, "jetmoe")
        graph = capture(replace(subject, fixed="one size"), "forward", {"batch": 1, "seq": length})
        rows[length] = {op.inputs[0].shape[0] for op, _ in graph.ops() if "_grouped_mm" in op.name}
    assert rows == {length: {2 * length} for length in rows}
