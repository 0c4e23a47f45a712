"""Weights and cache in few bits: every byte that a decode step reads, by hand."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from torchperf.annotate import works
from torchperf.frontend.capture import capture
from torchperf.frontend.hf import from_config
from torchperf.frontend.inference import for_mode
from torchperf.fuse import fuse
from torchperf.graph.cache import kv_bytes
from torchperf.graph.dtype import nbytes
from torchperf.graph.errors import TorchperfError
from torchperf.graph.graph import Graph
from torchperf.price.matmul import products_of
from torchperf.rewrite import inference

WIDE = {
    "vocab_size": 1000, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
}  # fmt: skip
MODELS = {
    "llama": {"model_type": "llama", **WIDE},
    "qwen3-moe": {
        "model_type": "qwen3_moe", **WIDE, "num_experts": 64, "num_experts_per_tok": 4, "moe_intermediate_size": 128,
    },
    "deepseek-v3": {
        "model_type": "deepseek_v3", **WIDE, "num_hidden_layers": 3, "num_key_value_heads": 4,
        "moe_intermediate_size": 128, "n_shared_experts": 1, "n_routed_experts": 64, "num_experts_per_tok": 4,
        "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1, "q_lora_rank": 128, "kv_lora_rank": 128,
        "qk_rope_head_dim": 64, "qk_nope_head_dim": 64, "v_head_dim": 64,
    },
}  # fmt: skip
BATCH, KV = 2, 300


@cache
def decode(name: str, batch: int = BATCH) -> Graph:
    subject = for_mode(from_config(MODELS[name], name), "decode")
    return capture(subject, "decode", {"batch": batch, "kv": KV}).bind(batch=batch, kv=KV)


def products(graph: Graph, module: str) -> list[tuple[int, str, int, int]]:
    """(times, dtype, bytes read, rows m) of the products under a module's name."""
    return [
        (count, work.dtype, work.bytes_read, work.dim("m"))
        for block, row, count in zip(graph.blocks, works(graph), graph.counts, strict=True)
        for op, work in zip(block.ops, row, strict=True)
        if work.kind == "matmul" and module in op.module
    ]


# bytes of a [n, k] weight: elements, then scales, then zero points
WEIGHTS = {
    "fp8": lambda n, k: n * k + 4,
    "int8": lambda n, k: n * k + 4 * n,
    "int4": lambda n, k: n * k // 2 + 2 * n * k // 128 + n * k // 128 // 2,
    "nvfp4": lambda n, k: n * k // 2 + n * k // 16,
    "mxfp4": lambda n, k: n * k // 2 + n * k // 32,
}


@pytest.mark.parametrize("weights", WEIGHTS)
def test_a_weight_and_its_scales_are_read(weights: str) -> None:
    """16-bit x: the down projection [256, 512] of each layer."""
    graph = inference.quantise(decode("llama"), weights, "bf16")
    assert products(graph, "down_proj") == [(2, "bf16", BATCH * 512 * 2 + WEIGHTS[weights](256, 512), BATCH)]


def test_head_and_embedding_stay() -> None:
    before, after = decode("llama"), inference.quantise(decode("llama"), "int4")
    assert products(after, "lm_head") == products(before, "lm_head")
    dtypes = {p.names[0]: p.dtype for p in after.facts.parameters}
    assert {dtypes[n] for n in ("lm_head.weight", "model.embed_tokens.weight", "model.norm.weight")} == {"bf16"}
    assert dtypes["model.layers.1.mlp.up_proj.weight"] == "i4"


@pytest.mark.parametrize("weights", WEIGHTS)
def test_parameters_are_what_memory_holds(weights: str) -> None:
    """All of a layer's seven matrices, with scales and zero points as parameters of their own."""
    facts = inference.quantise(decode("llama"), weights, "bf16").facts
    shapes = [(256, 256), (128, 256), (128, 256), (256, 256), (512, 256), (512, 256), (256, 512)]
    layers = [p for p in facts.parameters if ".layers." in p.names[0] and "norm" not in p.names[0]]
    assert sum(nbytes(p.numel, p.dtype) for p in layers) == 2 * sum(WEIGHTS[weights](n, k) for n, k in shapes)


def test_x_is_quantised_once_for_the_products_that_share_it() -> None:
    """fp8: one cast for q, k and v, one for gate and up, one for each other product; the products run in fp8."""
    graph = inference.quantise(decode("llama"), "fp8")
    casts = sum(count for op, count in graph.ops() if op.name.startswith("torchperf.quantise"))
    assert casts == 2 * 4
    for _, dtype, _, _ in products(graph, "layers"):
        assert dtype == "fp8"
    assert products(graph, "down_proj") == [(2, "fp8", BATCH * 512 + 256 * 512 + 4, BATCH)]
    assert {dtype for _, dtype, _, _ in products(graph, "lm_head")} == {"bf16"}


@pytest.mark.parametrize(
    ("weights", "activations", "dtype"),
    [("int8", "int8", "i8"), ("nvfp4", None, "fp4"), ("int4", "fp8", "fp8"), ("int4", None, "bf16")],
)
def test_products_run_in_the_dtype_of_x(weights: str, activations: str | None, dtype: str) -> None:
    graph = inference.quantise(decode("llama"), weights, activations)
    assert {found for _, found, _, _ in products(graph, "layers")} == {dtype}


def test_routers_stay_and_experts_do_not() -> None:
    """The router is [64, 256]; experts' scales are read with the experts that the batch meets."""
    before, after = decode("qwen3-moe"), inference.quantise(decode("qwen3-moe"), "int8", "bf16")
    for graph in (before, after):
        assert (2, "bf16", BATCH * 256 * 2 + 64 * 256 * 2, BATCH) in products(graph, "mlp")
    dtypes = {p.names[0]: p.dtype for p in after.facts.parameters}
    assert dtypes["model.layers.0.mlp.gate.weight"] == "bf16"
    assert dtypes["model.layers.0.mlp.experts.down_proj"] == "i8"


def test_absorbed_projections_stay() -> None:
    after = inference.quantise(decode("deepseek-v3"), "fp8")
    dtypes = {p.names[0]: p.dtype for p in after.facts.parameters}
    assert dtypes["model.layers.0.self_attn.kv_b_proj.weight"] == "bf16"
    assert dtypes["model.layers.0.self_attn.kv_a_proj_with_mqa.weight"] == "fp8"


@pytest.mark.parametrize("batch", [1, 2, 8, 40])
def test_experts_that_a_batch_meets(batch: int) -> None:
    """64 experts, four a token: 64 (1 - (1 - 4/64)^B) are read, of a [64, 256, 128] down projection."""
    met = 64 * (1 - (1 - 4 / 64) ** batch)
    graph = inference.routed(decode("qwen3-moe", batch))
    reads = sorted(read for _, _, read, m in products(graph, "experts") if m == 4 * batch)
    # one product of gate and up together [256, 256], one of down [256, 128], and where the groups end
    x = 4 * batch * 2
    assert reads == [
        pytest.approx(x * 128 + 64 * 4 + met * 256 * 128 * 2, abs=2),
        pytest.approx(x * 256 + 64 * 4 + met * 256 * 256 * 2, abs=2),
    ]
    groups = {work.dim("groups") for row in works(graph) for work in row if "groups" in dict(work.dims)}
    assert groups == {round(met)}


@pytest.mark.parametrize("name", ["llama", "deepseek-v3"])
@pytest.mark.parametrize(("kv", "bits"), [("bf16", 16), ("fp8", 8)])
def test_attention_reads_the_cache_in_its_dtype(name: str, kv: str, bits: int) -> None:
    """K and V, or the latent once, of KV + 1 tokens; q in 16 bits."""
    graph = inference.quantise(decode(name), kv=kv)
    total = 0
    for block, row, count in zip(graph.blocks, works(graph), graph.counts, strict=True):
        for op, work in zip(block.ops, row, strict=True):
            if work.kind == "attention":
                total += count * (work.bytes_read - op.operand("query").nbytes)
                assert dict(work.dims).get("kv_bits") == (None if kv == "bf16" else bits)
    assert total == kv_bytes(graph.facts, bits, BATCH, KV + 1)


def test_an_integer_cache_has_scales_and_zero_points() -> None:
    """4 bits an element and 32 for each token and head of 64."""
    graph = inference.quantise(decode("llama"), kv="int4")
    bits = inference.cache_bits("int4", 64)
    assert bits == 4.5
    (read,) = [
        count * (work.bytes_read - op.operand("query").nbytes)
        for block, row, count in zip(graph.blocks, works(graph), graph.counts, strict=True)
        for op, work in zip(block.ops, row, strict=True)
        if work.kind == "attention"
    ]
    assert read == kv_bytes(graph.facts, bits, BATCH, KV + 1)
    written = [
        count * sum(v.nbytes for v in op.outputs)
        for block, count in zip(graph.blocks, graph.counts, strict=True)
        for op in block.ops
        if op.name.startswith("aten.copy_")
    ]
    assert sum(written) == kv_bytes(graph.facts, bits, BATCH, 1)


def test_sixteen_bits_change_nothing_but_the_routing() -> None:
    assert inference.quantise(decode("llama"), "fp16", "bf16", "fp16") == decode("llama")


def test_a_weight_is_one_storage_wherever_it_is_used() -> None:
    """Segments of the same block get slots of their own for their own weights' scales."""
    graph = inference.quantise(decode("llama"), "int4")
    layers = [s for s in graph.segments if s.module]
    own = [set(s.storages) for s in layers]
    assert len(layers) == 2
    shared = own[0] & own[1]
    names = {graph.blocks[layers[0].block].storages[layers[0].storages.index(i)].name for i in shared}
    assert not any(name and name.endswith(("_scales", "_zeros", "proj.weight")) for name in names)
    assert all(len(s.storages) == len(graph.blocks[s.block].storages) for s in graph.segments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"weights": "int3"}, "unknown weights `int3`"),
        ({"activations": "int4"}, "unknown activations `int4`"),
        ({"kv": "fp4"}, "unknown kv `fp4`"),
        ({"activations": "fp8"}, "need quantised weights"),
        ({"weights": "fp8", "activations": "int8"}, "no kernel multiplies `fp8` weights with `int8`"),
    ],
)
def test_what_is_refused(arguments: dict[str, str], message: str) -> None:
    with pytest.raises(TorchperfError, match=message):
        inference.quantise(decode("llama"), **arguments)


def test_without_a_config_rows_are_spread() -> None:
    """No `top_k` is made up where the config tells of none."""
    graph = decode("qwen3-moe")
    bare = replace(graph, facts=replace(graph.facts, config=()))
    assert inference.routed(bare) == bare


@pytest.mark.parametrize(("weights", "priced"), [("bf16", "16bit"), ("int8", "int8_wo"), ("mxfp4", "int4_wo")])
def test_experts_are_priced_in_the_bits_of_their_weights(weights: str, priced: str) -> None:
    """As few experts are met as there are: w is what is read of those."""
    graph = inference.quantise(decode("qwen3-moe"), weights, None if weights == "bf16" else "bf16")
    found = {products_of(w)[0] for row in works(graph) for w in row if "groups" in dict(w.dims)}
    assert found == {priced}


def test_one_sequence_runs_no_more_kernels_than_many() -> None:
    """The mean of a norm's only row is still a row's: it is no kernel of its own."""
    kernels = []
    for batch in (1, 8):
        graph = decode("llama", batch)
        fused = fuse(graph, works(graph))
        kinds = [(w.kind, count) for row, count in zip(works(fused), fused.counts, strict=True) for w in row]
        assert not any(kind == "reduction" for kind, _ in kinds)
        kernels.append(sum(count for kind, count in kinds if kind != "view"))
    assert kernels[0] <= kernels[1]
