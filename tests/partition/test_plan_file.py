"""Plans that the user or the model gives, in files and in words; and what is said of those that do not fit."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from torchperf import TorchperfError
from torchperf.graph.codec import decode, encode
from torchperf.graph.graph import Capture
from torchperf.graph.text import read, show
from torchperf.partition.given import given
from torchperf.partition.infer import infer
from torchperf.partition.plan_file import plan_of, read_plan
from torchperf.partition.tensor_parallel import tensor_parallel

LAYER = "model.layers.*."
LLAMA = {
    "lm_head": "colwise", "model.embed_tokens": "embedding_rowwise", f"{LAYER}self_attn.q_proj": "colwise",
    f"{LAYER}self_attn.o_proj": "rowwise", f"{LAYER}mlp.up_proj": "colwise",
}  # fmt: skip
MODELS = [  # every bundled family that brings a plan
    ("llama-3.1-8b", 3), ("mixtral-8x7b", 3), ("qwen3-8b", 3), ("qwen3-30b-a3b", 3), ("qwen2.5-7b", 2),
    ("mistral-7b", 2), ("gemma-2-9b", 2), ("gemma-3-4b-text", 6), ("phi-3-mini", 2), ("gpt-neox-20b", 2),
    ("deepseek-v2-lite", 3), ("deepseek-v3", 5),
]  # fmt: skip
INFERRED_ALONE = {  # transformers leaves this model's attention whole
    "deepseek-v3": {f"{LAYER}self_attn.{p}" for p in ("q_b_proj.weight:0", "kv_b_proj.weight:0", "o_proj.weight:1")}
}


def split_parameters(found: Any) -> set[str]:
    parameters = found.placement.prepared.factors.parameters
    return {f"{n}:{d}" for n, dims in parameters.items() for d, dim in enumerate(dims) if found.split.of(dim)[0]}


@pytest.mark.parametrize(("model", "layers"), MODELS, ids=[m for m, _ in MODELS])
def test_the_model_s_own_plan_is_the_inferred_one(real: Callable[..., Any], model: str, layers: int) -> None:
    prepared = real(model, num_hidden_layers=layers)
    plan = plan_of(prepared.factors.graph, "hf")
    assert plan is not None
    own, ours = split_parameters(given(prepared, 2, plan)), split_parameters(infer(prepared, 2))
    assert own
    assert own <= ours
    assert ours - own == INFERRED_ALONE.get(model, set())


@pytest.mark.parametrize("ranks", [2, 8, 16])
def test_a_given_plan_is_placed_as_the_inferred_one(real: Callable[..., Any], ranks: int) -> None:
    """16 ranks for 8 KV heads: the query group is the partner, as in inference."""
    prepared = real("llama-3.1-8b", num_hidden_layers=3)
    mine, ours = given(prepared, ranks, LLAMA, sequence=True), infer(prepared, ranks, sequence=True)
    assert mine.placement.collectives == ours.placement.collectives
    assert {v.reason for v in mine.verdicts} == set(LLAMA) - {f"{LAYER}self_attn.o_proj"}  # shares q's heads


def test_columns_are_output_features_however_the_weight_lies(real: Callable[..., Any]) -> None:
    """GPT-2's Conv1D holds [in, out]; a fused QKV is split in each segment."""
    prepared = real("gpt2-medium", seq=512)
    plan = {"transformer.h.*.attn.c_attn": "packed_colwise", "transformer.h.*.mlp.c_proj": "rowwise"}
    found = given(prepared, 4, plan)
    assert split_parameters(found) == {
        "transformer.h.*.attn.c_attn.weight:1", "transformer.h.*.attn.c_attn.bias:0",
        "transformer.h.*.attn.c_proj.weight:0", "transformer.h.*.mlp.c_fc.weight:1", "transformer.h.*.mlp.c_fc.bias:0",
        "transformer.h.*.mlp.c_proj.weight:0",
    }  # fmt: skip
    assert "(16/4 heads*64 head_dim + 16/4 heads*64 head_dim + 16/4 heads*64)" in str(found)


def test_experts_can_be_split_whole(real: Callable[..., Any]) -> None:
    prepared = real("mixtral-8x7b", num_hidden_layers=3)
    found = given(prepared, 4, {f"{LAYER}mlp.experts.gate_up_proj": "grouped_gemm"})
    assert split_parameters(found) == {f"{LAYER}mlp.experts.gate_up_proj:0", f"{LAYER}mlp.experts.down_proj:0"}


def test_a_sequence_parallel_norm_asks_for_sequence_parallelism(real: Callable[..., Any]) -> None:
    prepared = real("llama-3.1-8b", num_hidden_layers=3)
    plan = {**LLAMA, f"{LAYER}input_layernorm": "sequence_parallel"}
    assert (
        given(prepared, 4, plan).placement.collectives == given(prepared, 4, LLAMA, sequence=True).placement.collectives
    )


def test_tensor_parallel_takes_a_plan(real: Callable[..., Any]) -> None:
    graph = real("llama-3.1-8b", num_hidden_layers=3).factors.graph
    program = tensor_parallel(graph, 4, plan=LLAMA).program
    shapes = {p.names[0]: p.shape for p in program.facts.parameters}
    assert shapes["model.layers.1.self_attn.k_proj.weight"] == (1024 // 4, 4096)
    assert shapes["model.layers.1.input_layernorm.weight"] == (4096,)


def test_both_kinds_of_file(real: Callable[..., Any], tmp_path: Path) -> None:
    graph = real("llama-3.1-8b", num_hidden_layers=3).factors.graph
    toml, js = tmp_path / "plan.toml", tmp_path / "plan.json"
    toml.write_text("[tp_plan]\n" + "".join(f"{json.dumps(k)} = {json.dumps(v)}\n" for k, v in LLAMA.items()))
    js.write_text(json.dumps({"tp_plan": LLAMA}))
    assert plan_of(graph, str(toml)) == plan_of(graph, str(js)) == LLAMA
    assert plan_of(graph, "") is None


BAD = {  # name, contents, what is said
    "a.toml": ("[tp_plan\n", "is not TOML"),
    "a.json": ("{", "is not JSON"),
    "b.toml": ('tp = "colwise"\n', "has no table `tp_plan`"),
    "b.json": ("[1]", "has no table `tp_plan`"),
    "c.toml": ("[tp_plan]\n", "is empty"),
    "d.toml": ('[tp_plan]\n"lm_head" = 3\n', "tp_plan.lm_head  3 is no style"),
    "e.toml": ('[tp_plan]\n"lm_head" = "colwise"\n[plan]\n', "plan  is no part of a plan"),
    "f.toml": ("\xff", "is not TOML"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_named_with_its_key(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(BAD[name][0].encode("latin-1"))
    with pytest.raises(TorchperfError) as caught:
        read_plan(path)
    assert f"`{path}`" in caught.value.message
    assert BAD[name][1] in str(caught.value)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(TorchperfError, match="cannot read"):
        read_plan(tmp_path / "none.toml")


def test_every_key_that_does_not_fit_is_told_at_once(real: Callable[..., Any], tmp_path: Path) -> None:
    graph = real("llama-3.1-8b", num_hidden_layers=3).factors.graph
    path = tmp_path / "plan.toml"
    path.write_text(
        f'[tp_plan]\n"{LAYER}self_attn.q_prj" = "colwise"\n"lm_head" = "colwize"\n'
        '"model.layers.0.mlp.up_proj" = "colwise"\n'
    )
    with pytest.raises(TorchperfError) as caught:
        plan_of(graph, str(path))
    facts = dict(caught.value.facts)
    assert caught.value.message.startswith(f"`{path}` does not fit")
    assert "matches no module or parameter" in facts[f"{LAYER}self_attn.q_prj"]
    assert f"`{LAYER}self_attn.q_proj`" in facts[f"{LAYER}self_attn.q_prj"]
    assert "no style `colwize`; nearest: `colwise`" in facts["lm_head"]
    assert "name them all, with `*`" in facts["model.layers.0.mlp.up_proj"]


def test_a_model_without_a_plan_says_so(real: Callable[..., Any]) -> None:
    graph = real("gpt2-medium", seq=512).factors.graph
    with pytest.raises(TorchperfError, match=f"`{graph.facts.model}` brings no tensor-parallel plan"):
        plan_of(graph, "hf")


FAULTS = [  # plan, ranks, the pattern in the message, the facts it gives
    ({f"{LAYER}self_attn.q_proj": "colwise", f"{LAYER}self_attn.o_proj": "colwise"}, 2, f"{LAYER}self_attn.o_proj",
     {"dim", "reason"}),
    ({f"{LAYER}mlp.up_proj": "colwise", f"{LAYER}mlp.down_proj": "replicate"}, 2, f"{LAYER}mlp.down_proj",
     {"dim", "split by"}),
    ({f"{LAYER}self_attn.q_proj": "colwise"}, 3, f"{LAYER}self_attn.q_proj", {"dim", "nearest"}),
    ({f"{LAYER}mlp.up_proj": "grouped_gemm"}, 2, f"{LAYER}mlp.up_proj", {"dims"}),
]  # fmt: skip


@pytest.mark.parametrize(("plan", "ranks", "pattern", "keys"), FAULTS, ids=["twice", "whole", "ranks", "experts"])
def test_a_plan_that_cannot_be_placed_names_pattern_and_dim(
    real: Callable[..., Any], plan: dict[str, str], ranks: int, pattern: str, keys: set[str]
) -> None:
    with pytest.raises(TorchperfError) as caught:
        given(real("llama-3.1-8b", num_hidden_layers=3), ranks, plan)
    assert pattern in caught.value.message
    assert keys <= {key for key, _ in caught.value.facts}


def test_the_nearest_degrees_divide_all_that_the_plan_splits(real: Callable[..., Any]) -> None:
    """6 divides the vocabulary, but neither features nor heads."""
    prepared = real("llama-3.1-8b", num_hidden_layers=3)
    with pytest.raises(TorchperfError, match="5 ranks do not divide the 128256 ") as caught:
        given(prepared, 5, dict(prepared.factors.graph.facts.tp_plan))
    assert dict(caught.value.facts)["nearest"] == "4 or 8"


def test_the_plan_is_a_fact_of_the_graph(real: Callable[..., Any]) -> None:
    """It is saved and printed with the graph; a file written before there was one reads as having none."""
    graph = replace(real("llama-3.1-8b", num_hidden_layers=3).factors.graph, bound=None)
    assert dict(graph.facts.tp_plan)["lm_head"] == "colwise_gather_output"
    assert dict(graph.facts.tp_plan)[f"{LAYER}mlp.down_proj"] == "rowwise"
    data = encode(Capture((graph,)))
    assert decode(data)[0].facts.tp_plan == graph.facts.tp_plan
    assert read(show(Capture((graph,)))).facts.tp_plan == graph.facts.tp_plan
    before = json.loads(data)
    del before["graphs"][0]["facts"]["tp_plan"]
    assert decode(json.dumps(before).encode())[0].facts.tp_plan == ()
