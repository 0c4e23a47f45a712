"""The factors of real models: every op has a rule, nothing clashes, and fused weights show their parts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from torchperf import TorchperfError
from torchperf.partition.factors import propagate

FULL = [
    ("llama-3.1-8b", {"num_hidden_layers": 2}), ("gpt2", {"n_layer": 2}), ("mixtral-8x7b", {"num_hidden_layers": 2}),
    ("qwen3-30b-a3b", {"num_hidden_layers": 2}), ("deepseek-v3", {"num_hidden_layers": 4}),
    ("gemma-3-4b-text", {"num_hidden_layers": 7}), ("bert-base", {"num_hidden_layers": 2}),
    ("vit-b-16", {"num_hidden_layers": 2}), ("t5-base", {"num_layers": 2, "num_decoder_layers": 2}),
    ("phi-3-mini", {"num_hidden_layers": 2}), ("falcon-7b", {"num_hidden_layers": 2}),
    ("gpt-neox-20b", {"num_hidden_layers": 2}), ("bloom-176b", {"n_layer": 2}),
    ("opt-6.7b", {"num_hidden_layers": 2}), ("whisper-small", {"encoder_layers": 2, "decoder_layers": 2}),
]  # fmt: skip


@pytest.mark.parametrize(("model", "changes"), FULL, ids=[model for model, _ in FULL])
def test_every_op_is_known_and_nothing_clashes(real: Callable[..., Any], model: str, changes: dict[str, int]) -> None:
    factors = real(model, **changes).factors
    assert not factors.unresolved
    assert not factors.clashes


@pytest.mark.parametrize(
    ("model", "changes", "parameter", "text"),
    [
        ("gpt2", {"n_layer": 2}, "transformer.h.*.attn.c_attn.weight",
         "[hidden=768] x [(12 heads*64 head_dim + 12 heads*64 head_dim + 12 heads*64)]"),
        ("llama-3.1-8b", {"num_hidden_layers": 2}, "model.layers.*.self_attn.q_proj.weight",
         "[8 kv_heads*4 group*(64 + 64)] x [hidden=4096]"),
        ("llama-3.1-8b", {"num_hidden_layers": 2}, "model.layers.*.self_attn.k_proj.weight",
         "[8 kv_heads*(64 + 64)] x [hidden=4096]"),
        ("mixtral-8x7b", {"num_hidden_layers": 2}, "model.layers.*.mlp.experts.gate_up_proj",
         "[experts=8] x [(14336 + 14336)] x [hidden=4096]"),
        ("falcon-7b", {"num_hidden_layers": 2}, "transformer.h.*.self_attention.query_key_value.weight",
         "[(71 group + 2)*(32 + 32)] x [hidden=4544]"),
    ],
)  # fmt: skip
def test_parameters_read_as_factors(
    real: Callable[..., Any], model: str, changes: dict[str, int], parameter: str, text: str
) -> None:
    assert f"{parameter}: {text}" in str(real(model, **changes).factors).splitlines()


def test_layers_share_their_factors(real: Callable[..., Any]) -> None:
    """q's kv_heads are k's, v's and o's."""
    factors = real("llama-3.1-8b", num_hidden_layers=2).factors
    assert len(factors.leaf("kv_heads")) == 1
    assert len(factors.leaf("hidden")) == 1


def test_sequence_equal_to_hidden_stays_apart(tiny: Callable[..., Any]) -> None:
    """Nothing is told by its size: 32 positions and a hidden size of 32."""
    factors = tiny("llama", seq=32).factors
    assert not factors.clashes
    assert {leaf.size for leaf in factors.leaf("seq")} == {leaf.size for leaf in factors.leaf("hidden")} == {32}
    assert not {id(leaf) for leaf in factors.leaf("seq")} & {id(leaf) for leaf in factors.leaf("hidden")}


def test_an_unknown_op_is_reported_and_never_taken_for_elementwise(tiny: Callable[..., Any]) -> None:
    graph = tiny("gpt2").factors.graph
    blocks = tuple(
        replace(block, ops=tuple(replace(op, name=op.name.replace(".tanh.", ".mystery.")) for op in block.ops))
        for block in graph.blocks
    )
    factors = propagate(replace(graph, blocks=blocks))
    assert {note.name for note in factors.unresolved} == {"aten.mystery.default"}
    facts = next(f for records in factors.blocks for f in records if f.op.name == "aten.mystery.default")
    assert all(a is not b for a, b in zip(facts.inputs[0], facts.outputs[0], strict=True))


def test_a_graph_with_free_sizes_is_refused(captured: Callable[..., Any]) -> None:
    with pytest.raises(TorchperfError, match="free sizes"):
        propagate(captured("gpt2").graphs[0])
