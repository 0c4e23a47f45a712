"""Why each parameter is split or whole, as the plan's text says it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from torchperf.partition.given import given
from torchperf.partition.infer import infer
from torchperf.partition.why import above_share, left_whole, reasons

LAYER = "model.layers.*."


def why(found: Any) -> dict[str, str]:
    return {row.parameter: row.why for row in reasons(found)}


def test_what_a_split_saves_and_what_keeps_a_parameter_whole(real: Callable[..., Any]) -> None:
    found = infer(real("gpt2-medium", seq=512), 2)
    saved = {v.candidate.leaf.size: v.saved for v in found.verdicts if v.verdict == "taken"}
    rows = {row.parameter: row for row in reasons(found)}
    assert list(rows) == list(found.placement.prepared.factors.parameters)
    ffn = rows["transformer.h.*.mlp.c_fc.weight"]
    assert (ffn.split, ffn.saved) == (True, saved[4096])
    assert ffn.why == f"4096 saves {saved[4096] * 1e3:.3g} ms"
    table = rows["transformer.wte.weight"]
    assert (table.split, table.saved) == (False, None)
    assert table.why.startswith("whole: 2 does not divide 50257 vocab; 1024 hidden: ")
    assert "a table of positions stays whole" in rows["transformer.wpe.weight"].why
    for row in rows.values():
        assert row.split == ("/2" in row.dims)
        assert row.split != row.why.startswith("whole: ")
        assert f"  {row.parameter}: {row.dims}; {row.why}\n" in str(found)


def test_flops_above_the_share_are_those_of_the_whole_head(real: Callable[..., Any]) -> None:
    """h = 1024, s = 512: a layer is 24 s h^2 + 4 s^2 h, the head 2 s h v, and it is computed on both ranks."""
    found = infer(real("gpt2-medium", seq=512), 2)
    graph = found.placement.prepared.factors.graph
    layers = len({s.module for s in graph.segments if s.module})
    samples = graph.size("batch") or 1
    head = 2 * 512 * 1024 * 50257 * samples
    whole = head + samples * layers * (24 * 512 * 1024**2 + 4 * 512**2 * 1024)
    assert above_share(found) == pytest.approx(head / whole)
    assert f"{head / whole:.1%} above 1/2" in str(found)
    assert above_share(infer(real("llama-3.1-8b", num_hidden_layers=3), 2)) == 0


def test_a_large_parameter_that_does_not_divide(real: Callable[..., Any]) -> None:
    (one,) = left_whole(infer(real("gpt2-medium", seq=512), 8))
    assert (one.parameter, one.dim, one.size, one.ranks) == ("transformer.wte.weight", "vocab", 50257, 8)
    assert one.padded == 51200  # of 128 x 8
    graph = real("gpt2-medium", seq=512).factors.graph
    width = {"bf16": 2, "fp32": 4}[graph.facts.parameters[0].dtype]
    assert one.nbytes == 50257 * 1024 * width * 7 // 8
    assert left_whole(infer(real("llama-3.1-8b", num_hidden_layers=3), 8)) == ()


def test_the_reason_of_a_given_plan_is_its_line(real: Callable[..., Any]) -> None:
    plan = {
        f"{LAYER}self_attn.q_proj": "colwise", f"{LAYER}self_attn.o_proj": "rowwise",
        f"{LAYER}input_layernorm": "replicate",
    }  # fmt: skip
    found = why(given(real("llama-3.1-8b", num_hidden_layers=3), 2, plan))
    assert found[f"{LAYER}self_attn.o_proj.weight"] == f'"{LAYER}self_attn.o_proj" = "rowwise"'
    assert found[f"{LAYER}self_attn.k_proj.weight"] == f'as "{LAYER}self_attn.q_proj" = "colwise"'
    assert found[f"{LAYER}input_layernorm.weight"] == f'whole: "{LAYER}input_layernorm" = "replicate"'
    assert found[f"{LAYER}mlp.up_proj.weight"] == "whole: no line of the plan names it"


def test_experts_that_stay_whole_say_so(real: Callable[..., Any]) -> None:
    found = why(infer(real("mixtral-8x7b", num_hidden_layers=3), 2))
    assert found[f"{LAYER}mlp.gate.weight"].startswith("whole: 8: aten.topk.default needs the split dim whole")
