"""Prefill and decode of small models of every family that caches: free sizes, bytes, and what is kept of a token."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from torchperf.annotate import works
from torchperf.frontend.capture import capture
from torchperf.frontend.hf import from_config
from torchperf.frontend.inference import for_mode
from torchperf.frontend.subject import Subject
from torchperf.graph.cache import CacheEntry, bytes_per_token, kv_bytes
from torchperf.graph.codec import decode, encode
from torchperf.graph.graph import Capture, Graph
from torchperf.graph.text import read, show

DENSE = {
    "vocab_size": 97, "hidden_size": 64, "intermediate_size": 112, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 4096,
}  # fmt: skip
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
LATENT = {
    "vocab_size": 97, "hidden_size": 64, "intermediate_size": 112, "moe_intermediate_size": 48,
    "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 4, "n_shared_experts": 1,
    "n_routed_experts": 8, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1,
    "q_lora_rank": 24, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 12,
    "max_position_embeddings": 4096,
}  # fmt: skip
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", **DENSE},
    "gpt2": {
        "model_type": "gpt2", "vocab_size": 97, "n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 2048,
    },
    "mistral": {"model_type": "mistral", **DENSE, "sliding_window": 50},
    "qwen3-moe": {"model_type": "qwen3_moe", **DENSE, **EXPERTS},
    "deepseek-v3": {"model_type": "deepseek_v3", **LATENT},
    "gemma-3": {
        "model_type": "gemma3_text", **DENSE, "num_hidden_layers": 4, "sliding_window": 50,
        "query_pre_attn_scalar": 16, "layer_types": ["sliding_attention", "full_attention"] * 2,
    },
    "gpt-oss": {
        "model_type": "gpt_oss", **DENSE, "num_local_experts": 8, "num_experts_per_tok": 2, "sliding_window": 50,
    },
    "mamba2": {
        "model_type": "mamba2", "vocab_size": 97, "hidden_size": 64, "state_size": 16, "num_hidden_layers": 2,
        "num_heads": 8, "head_dim": 16, "expand": 2, "n_groups": 2, "chunk_size": 32,
    },
    "qwen3-next": {
        "model_type": "qwen3_next", **DENSE, "num_hidden_layers": 4, "num_experts": 4, "num_experts_per_tok": 2,
        "moe_intermediate_size": 48, "shared_expert_intermediate_size": 48, "linear_num_key_heads": 2,
        "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
    },
}  # fmt: skip
STEPS = {"decode": ("kv", (1, 3, 40, 49, 50, 64, 1500)), "prefill": ("seq", (5, 50, 64, 200))}


@cache
def subject(name: str, mode: str) -> Subject:
    return for_mode(from_config(CONFIGS[name], name), mode)


@cache
def graph(name: str, mode: str, batch: int, length: int) -> Graph:
    """Captured once for the ranges that hold these sizes."""
    size = STEPS[mode][0]
    return capture(subject(name, mode), mode, {"batch": batch, size: length})


def rows(found: Graph) -> Iterator[tuple[Any, ...]]:
    """Every op as it ran, its tensors by shape, layout and the storage of the whole program."""
    numbers: dict[int, int] = {}
    for segment in found.segments:
        block = found.blocks[segment.block]
        for op in block.ops:
            tensors = []
            for value in (*op.inputs, *op.outputs):
                number = numbers.setdefault(segment.storages[value.slot], len(numbers))
                storage = block.storages[value.slot]
                tensors.append((value.dtype, value.shape, value.strides, value.offset, number, storage.nbytes))
            yield (op.name, op.module, op.operands, tuple(tensors), op.attrs)


# gated delta rule in chunks of 64, a Python loop: as many ops as there are chunks
LOOPS = {("qwen3-next", "prefill")}


@pytest.mark.parametrize(("name", "mode"), [(n, m) for n in CONFIGS for m in STEPS if (n, m) not in LOOPS])
def test_bound_is_what_a_capture_at_that_length_records(name: str, mode: str) -> None:
    """On both sides of every window (50) and chunk (32); batch 1 and 6."""
    size, lengths = STEPS[mode]
    graphs: list[Graph] = []
    for batch in (1, 6):
        for length in lengths:
            sizes = {"batch": batch, size: length}
            found = next((g for g in graphs if g.holds(sizes)), None)
            if found is None:
                found = capture(subject(name, mode), mode, sizes)
                graphs.append(found)
                assert found.facts.fixed == ""
                assert found.facts.guesses == ()
            fresh = capture(replace(subject(name, mode), fixed="the oracle"), mode, sizes)
            assert list(rows(found.bind(**sizes))) == list(rows(fresh.bind(**sizes))), sizes


@pytest.mark.parametrize("name", ["llama", "gemma-3", "deepseek-v3"])
def test_new_tokens_behind_cached_ones(name: str) -> None:
    """A chunk of a prompt: sizes batch, seq and kv are free of each other, on both sides of the window."""
    found = capture(subject(name, "extend"), "extend", {"batch": 3, "seq": 20, "kv": 90})
    assert found.facts.fixed == ""
    for seq, kv in ((5, 200), (300, 7), (64, 64)):
        sizes = {"batch": 4, "seq": seq, "kv": kv}
        fresh = capture(replace(subject(name, "extend"), fixed="the oracle"), "extend", sizes).bind(**sizes)
        bound = found.bind(**sizes)
        assert list(rows(bound)) == list(rows(fresh)), sizes
        for op, _ in bound.ops():
            if op.name.startswith("torchperf.attention"):
                seen = kv if op.attr("window") is None else min(kv, op.attr("window") - 1)
                assert (op.operand("query").shape[2], op.operand("key").shape[2]) == (seq, seen + seq)
                assert op.attr("is_causal") is True


ENCODERS: dict[str, dict[str, Any]] = {
    "t5": {
        "model_type": "t5", "vocab_size": 97, "d_model": 64, "d_kv": 16, "d_ff": 112, "num_layers": 3,
        "num_heads": 4, "decoder_start_token_id": 0, "architectures": ["T5ForConditionalGeneration"],
    },
    "whisper": {
        "model_type": "whisper", "vocab_size": 97, "d_model": 64, "encoder_layers": 3, "decoder_layers": 3,
        "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 112,
        "decoder_ffn_dim": 112, "num_mel_bins": 16, "max_source_positions": 60, "max_target_positions": 1024,
        "pad_token_id": 1, "bos_token_id": 2, "eos_token_id": 2, "decoder_start_token_id": 3,
        "architectures": ["WhisperForConditionalGeneration"],
    },
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "sizes", "source"),
    [("t5", {"batch": 2, "seq": 70, "kv": 33}, 70), ("whisper", {"batch": 2, "kv": 33}, 60)],
)
def test_an_encoder_runs_once(name: str, sizes: dict[str, int], source: int) -> None:
    """Its keys and values are cached in prefill; in decode they are read, and no op of the encoder runs."""
    whole = from_config(ENCODERS[name], name)
    made = for_mode(whole, "prefill")
    first = capture(made, "prefill", {s: sizes[s] for s in made.sizes})
    assert {e.kind: e.elements for e in first.facts.cache} == {"kv": 2 * 64, "cross": 2 * 64}
    answered = for_mode(whole, "decode")
    assert set(answered.sizes) == set(sizes)
    found = capture(answered, "decode", {**sizes, "batch": 5})
    assert found.facts.fixed == ""
    assert sorted(found.facts.cache, key=str) == sorted(first.facts.cache, key=str)
    fresh = capture(replace(answered, fixed="the oracle"), "decode", sizes).bind(**sizes)
    bound = found.bind(**sizes)
    assert list(rows(bound)) == list(rows(fresh))
    assert not any("encoder." in op.module.replace("decoder.", "") for op, _ in bound.ops())
    seen, _ = cache_traffic(bound)
    assert seen == kv_bytes(bound.facts, None, 2, 33 + 1, source=source)


@pytest.mark.parametrize("name", CONFIGS)
def test_one_decode_graph_for_every_length(name: str) -> None:
    """No capture a token: from 2 cached tokens to the model's limit, past every window."""
    found = graph(name, "decode", 2, 100)
    (low, high), = [(low, high) for size, low, high, _ in found.facts.ranges if size == "kv"]  # fmt: skip
    limit = dict(found.facts.limits).get("kv")
    assert (low, high) == (2, -1 if limit is None else limit)


def cache_traffic(found: Graph) -> tuple[int, int]:
    """Bytes of the cache that attention reads, and bytes written into it."""
    seen = written = 0
    for block, count in zip(found.blocks, found.counts, strict=True):
        for op in block.ops:
            kept = [v for v in op.inputs if block.storages[v.slot].kind == "cache"]
            if op.name.startswith("torchperf.attention"):
                (work,) = works(replace(found, blocks=(replace(block, ops=(op,)),)))[0]
                others = [v for v in set(op.inputs) if block.storages[v.slot].kind != "cache"]
                seen += count * (work.bytes_read - sum(v.nbytes for v in others)) if kept else 0
            if op.name.startswith("aten.copy_") and block.storages[op.outputs[0].slot].kind == "cache":
                written += count * op.outputs[0].nbytes
    return seen, written


@pytest.mark.parametrize("name", [n for n in CONFIGS if n != "mamba2"])
def test_decode_reads_the_cache_once_and_writes_one_token(name: str) -> None:
    """No copy of the cache, no repeated heads, no expanded latent, no token beyond a window."""
    for kv in (30, 1000):
        found = graph(name, "decode", 2, 100).bind(batch=2, kv=kv)
        seen, written = cache_traffic(found)
        growing = replace(found.facts, cache=tuple(e for e in found.facts.cache if e.kind != "state"))
        assert seen == kv_bytes(growing, None, 2, kv + 1)
        assert written == 2 * bytes_per_token(found.facts)


@pytest.mark.parametrize("name", [n for n in CONFIGS if n not in ("mamba2", "qwen3-next")])
def test_prefill_writes_what_is_kept(name: str) -> None:
    """Each token once, and of a window its last tokens alone; attention does not read it back."""
    for seq in (40, 400):
        found = graph(name, "prefill", 2, 100).bind(batch=2, seq=seq)
        seen, written = cache_traffic(found)
        growing = replace(found.facts, cache=tuple(e for e in found.facts.cache if e.kind != "state"))
        assert (seen, written) == (0, kv_bytes(growing, None, 2, seq))


def test_nothing_is_joined_to_the_cache() -> None:
    """transformers' own cache would `cat` keys and values at every token."""
    found = graph("llama", "decode", 2, 100)
    for block in found.blocks:
        joined = [op for op in block.ops if op.name.startswith("aten.cat")]
        assert not any(block.storages[v.slot].kind == "cache" for op in joined for v in op.inputs)


@pytest.mark.parametrize("mode", STEPS)
def test_the_head_sees_the_last_token_alone(mode: str) -> None:
    found = graph("llama", mode, 2, 100).bind(**{"batch": 2, STEPS[mode][0]: 300})
    (head,) = [op for op, _ in found.ops() if op.module == "lm_head" and op.name == "aten.mm.default"]
    assert head.inputs[0].shape == (2, 64)


@pytest.mark.parametrize("name", ["llama", "qwen3-moe", "gpt2", "mistral"])
def test_layers_fold(name: str) -> None:
    """One block for all layers, as in training."""
    found = graph(name, "decode", 2, 100)
    blocks = {block.module for block in found.blocks if block.module}
    assert sum(1 for block in found.blocks if block.module) == len(blocks) == 1


def test_latent_attention_is_absorbed() -> None:
    """Scores over rank 16 + rope 8, values over rank 16, one key head; four heads' keys are never made."""
    found = graph("deepseek-v3", "decode", 2, 100).bind(batch=2, kv=500)
    for op, _ in found.ops():
        if op.name.startswith("torchperf.attention"):
            query, key, value = (op.operand(name).shape for name in ("query", "key", "value"))
            assert (query, key, value) == ((2, 4, 1, 24), (2, 1, 501, 24), (2, 1, 501, 16))
        if op.module.endswith("self_attn"):
            assert max((v.numel for v in op.outputs), default=0) <= 2 * 501 * 24
    prefill = graph("deepseek-v3", "prefill", 2, 100).bind(batch=2, seq=500)
    expanded = [op for op, _ in prefill.ops() if op.name.startswith("torchperf.attention")]
    assert {op.operand("key").shape for op in expanded} == {(2, 4, 500, 24)}


def test_absorbed_products() -> None:
    """FLOPs of the two absorbed projections: 2 B H (nope + v) rank a layer."""
    found = graph("deepseek-v3", "decode", 2, 100).bind(batch=2, kv=500)
    products = [
        (count, work)
        for block, row, count in zip(found.blocks, works(found), found.counts, strict=True)
        for op, work in zip(block.ops, row, strict=True)
        if op.name.startswith("aten.bmm") and op.module.endswith("self_attn")
    ]
    assert sum(count * work.flops for count, work in products) == 3 * 2 * 2 * 4 * (16 + 12) * 16


ENTRIES = {
    "llama": (CacheEntry("model.layers.*.self_attn", (0, 1, 2), "kv", 2, 64),),
    "mistral": (CacheEntry("model.layers.*.self_attn", (0, 1, 2), "kv", 2, 64, 50),),
    "deepseek-v3": (CacheEntry("model.layers.*.self_attn", (0, 1, 2), "latent", 1, 24),),
    "gemma-3": (
        CacheEntry("model.layers.*.self_attn", (0, 2), "kv", 2, 64, 50),
        CacheEntry("model.layers.*.self_attn", (1, 3), "kv", 2, 64),
    ),
    "mamba2": (
        CacheEntry("backbone.layers.*.mixer", (0, 1), "state", 192, 192 * 4),
        CacheEntry("backbone.layers.*.mixer", (0, 1), "state", 8, 8 * 16 * 16, 0, "fp32"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("mode", STEPS)
@pytest.mark.parametrize("name", ENTRIES)
def test_what_is_kept(name: str, mode: str) -> None:
    """Heads, elements, windows and states as transformers' cache holds them, whether prompt or token fills it."""
    assert graph(name, mode, 2, 100).facts.cache == ENTRIES[name]


@pytest.mark.parametrize("name", ["gemma-3", "deepseek-v3", "mamba2"])
def test_facts_of_the_cache_are_saved(name: str) -> None:
    """As JSON and as text."""
    whole = Capture((graph(name, "decode", 2, 100),))
    assert decode(encode(whole))[0] == whole
    assert read(show(whole)) == whole
