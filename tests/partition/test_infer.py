"""Plans found from the program alone, and what is said of those that cannot be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from torchperf import TorchperfError
from torchperf.partition.choose import split_of
from torchperf.partition.infer import infer
from torchperf.partition.placement import place


def names(found: Any) -> set[str]:
    return {f"{name}:{dim}" for candidate in found.taken for name, dim in candidate.uses}


def test_llama_is_split_by_heads_ffn_and_vocabulary(real: Callable[..., Any]) -> None:
    found = infer(real("llama-3.1-8b", num_hidden_layers=3), 8)
    layer = "model.layers.*."
    assert names(found) == {
        "model.embed_tokens.weight:0", "lm_head.weight:0", f"{layer}self_attn.q_proj.weight:0",
        f"{layer}self_attn.k_proj.weight:0", f"{layer}self_attn.v_proj.weight:0", f"{layer}self_attn.o_proj.weight:1",
        f"{layer}mlp.gate_proj.weight:0", f"{layer}mlp.up_proj.weight:0", f"{layer}mlp.down_proj.weight:1",
    }  # fmt: skip
    assert "[8/8 kv_heads*4 group*(64 + 64)] x [4096 hidden]" in str(found)


def test_a_fused_qkv_is_split_inside_its_segments(real: Callable[..., Any]) -> None:
    found = infer(real("gpt2-medium", seq=512), 8)
    assert "(16/8 heads*64 head_dim + 16/8 heads*64 head_dim + 16/8 heads*64)" in str(found)
    assert "transformer.wpe.weight:0" not in names(found)  # positions stay whole, as Megatron's


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_mixtral_is_split_inside_each_expert(real: Callable[..., Any], ranks: int) -> None:
    found = infer(real("mixtral-8x7b", num_hidden_layers=3), ranks)
    assert {"model.layers.*.mlp.experts.gate_up_proj:1", "model.layers.*.mlp.experts.down_proj:2"} <= names(found)
    assert not any("gate.weight" in name for name in names(found))


def test_the_hub_leaf_is_left_where_the_rest_is_cheaper(real: Callable[..., Any]) -> None:
    """Trap 1: hidden saves most alone, and shuts out heads, ffn and vocabulary."""
    found = infer(real("llama-3.1-8b", num_hidden_layers=3), 8)
    hub = next(v for v in found.verdicts if v.candidate.leaf.name == "hidden")
    alone = max(found.verdicts, key=lambda v: v.saved if v.verdict != "taken" else 0.0)
    assert hub.verdict == "skipped"
    assert alone is hub


@pytest.mark.parametrize("model", ["llama-3.1-8b", "qwen3-30b-a3b"])
def test_more_ranks_than_kv_heads_hold_k_and_v_twice(real: Callable[..., Any], model: str) -> None:
    """Trap 6: KV heads on one sub-axis, the query group on the other."""
    prepared = real(model, num_hidden_layers=2)
    kv = prepared.factors.leaf("kv_heads")[0].size
    found = infer(prepared, 2 * kv)
    assert found.split.sizes == (kv, 2)
    k = prepared.factors.parameters["model.layers.*.self_attn.k_proj.weight"]
    q = prepared.factors.parameters["model.layers.*.self_attn.q_proj.weight"]
    assert found.split.degree(found.split.held(k)[0]) == kv
    assert found.split.degree(found.split.held(q)[0]) == 2 * kv
    twice = [c for c in found.placement.collectives if c.ranks == 2 and c.role == "activation"]
    assert {(c.phase, c.count) for c in twice} == {("backward", 2)}  # dK and dV, over the two that hold the same heads
    assert len(twice) == 2


def test_heads_that_do_not_divide_are_an_error_that_says_what_would(real: Callable[..., Any]) -> None:
    with pytest.raises(TorchperfError) as caught:
        infer(real("gpt2", seq=512), 8)
    text = str(caught.value)
    assert "8 ranks do not divide the 12 heads of `transformer.h.*.attn.c_attn" in text
    assert "6 or 12" in text


@pytest.mark.parametrize(
    ("ranks", "near"), [(5, [4, 8]), (12, [8, 16]), (24, [16, 32]), (48, [32]), (64, [32])], ids=str
)
def test_the_nearest_degrees_are_legal_and_nearest(real: Callable[..., Any], ranks: int, near: list[int]) -> None:
    """Legal for all that is split, K and V held more than once: 7 divides the 14336 features, and no heads."""
    prepared = real("llama-3.1-8b", num_hidden_layers=2)
    with pytest.raises(TorchperfError) as caught:
        infer(prepared, ranks)
    assert dict(caught.value.facts)["nearest"] == " or ".join(map(str, near))
    for degree in near:
        infer(prepared, degree)
    for degree in {ranks - 1, ranks + 1} - set(near):
        with pytest.raises(TorchperfError):
            infer(prepared, degree)


@pytest.mark.parametrize(
    ("ranks", "seq", "nearest", "lengths"),
    [(8, 1001, "none: no other degree divides 1001 and the rest", "1000 or 1008"), (8, 1020, "4", "1016 or 1024")],
)
def test_degrees_that_divide_the_sequence_too(
    real: Callable[..., Any], ranks: int, seq: int, nearest: str, lengths: str
) -> None:
    with pytest.raises(TorchperfError) as caught:
        infer(real("llama-3.1-8b", num_hidden_layers=2, seq=seq), ranks, sequence=True)
    assert dict(caught.value.facts)["nearest"] == nearest
    assert f"a sequence of {lengths}, " in (caught.value.hint or "")


def test_a_length_that_the_model_has_no_positions_for_is_not_named(real: Callable[..., Any]) -> None:
    with pytest.raises(TorchperfError, match="the sequence of 1022") as caught:
        infer(real("gpt2", seq=1022, n_positions=1023), 4, sequence=True)
    assert caught.value.hint == "a sequence of 1020, or no sequence parallelism"


def test_a_vocabulary_that_does_not_divide_stays_whole(real: Callable[..., Any]) -> None:
    found = infer(real("gpt2-medium", seq=512), 8)
    verdict = next(v for v in found.verdicts if v.candidate.leaf.size == 50257)
    assert (verdict.verdict, verdict.reason) == ("indivisible", "8 does not divide 50257 vocab")


def test_a_chosen_leaf_that_does_not_divide_names_parameter_and_dim(real: Callable[..., Any]) -> None:
    factors = real("gpt2", seq=512).factors
    with pytest.raises(TorchperfError) as caught:
        split_of(factors, factors.leaf("heads"), 8)
    assert [key for key, _ in caught.value.facts] == ["parameter", "dim", "nearest"]


def test_a_sequence_that_does_not_divide_is_an_error(real: Callable[..., Any]) -> None:
    with pytest.raises(TorchperfError, match="8 ranks do not divide the sequence of 100"):
        infer(real("gpt2-medium", seq=100), 8, sequence=True)


def test_a_model_without_a_sequence_says_so(real: Callable[..., Any]) -> None:
    with pytest.raises(TorchperfError, match="sequence"):
        infer(real("vit-b-16", num_hidden_layers=2), 4, sequence=True)


def test_two_leaves_of_one_value_are_a_conflict(real: Callable[..., Any]) -> None:
    """Trap 7: heads and head_dim on one axis would split a value twice."""
    prepared = real("gpt2-medium", seq=512)
    factors = prepared.factors
    placement = place(prepared, split_of(factors, [*factors.leaf("heads"), *factors.leaf("head_dim")], 8))
    assert any("split twice" in text for text in placement.conflicts)


@pytest.mark.parametrize(
    ("model", "changes"),
    [
        ("qwen2.5-7b", {"num_hidden_layers": 2}), ("qwen3-8b", {"num_hidden_layers": 2}),
        ("gemma-2-9b", {"num_hidden_layers": 2}), ("phi-3-mini", {"num_hidden_layers": 2}),
        ("gpt-neox-20b", {"num_hidden_layers": 2}), ("opt-6.7b", {"num_hidden_layers": 2}),
        ("bloom-176b", {"n_layer": 2}), ("whisper-small", {"encoder_layers": 2, "decoder_layers": 2}),
        ("t5-base", {"num_layers": 2, "num_decoder_layers": 2}), ("deepseek-v3", {"num_hidden_layers": 4}),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)  # fmt: skip
def test_other_families_split_nearly_all_matmul_flops(
    real: Callable[..., Any], model: str, changes: dict[str, int]
) -> None:
    prepared = real(model, **changes)
    found = infer(prepared, 2)
    whole = sum(n * sum(flops) for n, flops in zip(prepared.counts, prepared.flops, strict=True))
    spared = sum(n * b.flops for n, b in zip(prepared.counts, found.placement.blocks, strict=True))
    assert spared / whole > 0.5 * 0.95
