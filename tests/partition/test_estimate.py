"""A split step: what an estimate says of one device of a tensor-parallel group."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

import torchperf
from torchperf.cli import main
from torchperf.graph.errors import TorchperfError

H100 = {"gpu": "h100-sxm-80gb", "runtime": "compile"}


def test_weights_and_flops_are_shared_out(captured) -> None:
    """Llama-3.1-8B: every matrix is split; norms (0.003 % of the parameters) stay whole."""
    capture = captured("llama-3.1-8b")
    whole = torchperf.estimate(capture, seq_len=2048, **H100)
    for tp in (2, 4, 8):
        one = torchperf.estimate(capture, seq_len=2048, tp=tp, **H100)
        assert one.num_gpus == tp
        assert one.parameters == whole.parameters
        assert one.memory.parameters * tp == pytest.approx(whole.memory.parameters, rel=1e-3)
        assert one.memory.optimizer * tp == pytest.approx(whole.memory.optimizer, rel=1e-3)
        assert one.flops.model * tp == whole.flops.model
        assert one.step_time_s < whole.step_time_s
        assert one.mfu[0].flops_per_token == whole.mfu[0].flops_per_token
        assert one.mfu[0].value < whole.mfu[0].value


def test_sequence_parallel_splits_what_lies_between(captured) -> None:
    """Activations of Llama under tp 8: all of them are an eighth with sequence parallelism."""
    capture = captured("llama-3.1-8b")
    whole, tensor, both = (
        torchperf.estimate(capture, seq_len=2048, **H100, **how).memory.activations
        for how in ({}, {"tp": 8}, {"tp": 8, "sequence_parallel": True})
    )
    assert both * 8 == pytest.approx(whole, rel=0.02)
    assert both < tensor < whole


def test_two_all_reduces_a_layer_and_direction(captured) -> None:
    """Megatron's: after attention and after the MLP, forward and backward."""
    found = torchperf.split(captured("llama-3.1-8b"), tp=8, seq_len=1024)
    layer = [c for c in found.collectives if c.module]
    calls = [(c.kind, c.phase, c.calls) for c in layer]
    assert calls == [("all_reduce", "forward", 64), ("all_reduce", "backward", 64)]
    assert {c.nbytes for c in layer} == {1024 * 4096 * 2}
    assert "q_proj.weight: [8/8 kv_heads*4 group" in found.text


def test_recompute_repeats_its_collectives(captured) -> None:
    capture = captured("llama-3.1-8b")
    calls = {}
    for how in ("none", "full"):
        answer = torchperf.estimate(capture, seq_len=1024, tp=8, recompute=how, **H100)
        calls[how] = sum(share.calls for share in answer.by_kind if share.name == "collective")
    assert calls["full"] == calls["none"] + 2 * 32


def test_heads_that_do_not_divide(captured) -> None:
    with pytest.raises(TorchperfError, match="8 ranks do not divide the 12 heads"):
        torchperf.estimate(captured("gpt2"), tp=8, **H100)
    with pytest.raises(TorchperfError, match="does not fit the plan"):
        torchperf.estimate(captured("gpt2"), tp=2, num_gpus=3, **H100)
    with pytest.raises(TorchperfError, match="nothing is split"):
        torchperf.split(captured("gpt2"), tp=1)


def test_the_commands(captured) -> None:
    captured("gpt2")
    result = CliRunner().invoke(main, ["partition", "gpt2", "--tp", "4", "--json", "-"])
    assert result.exit_code == 0, result.stderr
    answer = json.loads(result.stdout)
    assert {c["kind"] for c in answer["collectives"]} == {"all_reduce"}
    (fused,) = [p for p in answer["parameters"] if p["name"] == "transformer.h.0.attn.c_attn.weight"]
    assert fused["local_shape"] == [768, 576]
    shown = CliRunner().invoke(main, ["partition", "gpt2", "--tp", "4", "--ops"])
    assert "torchperf.all_reduce" in shown.stdout
    table = CliRunner().invoke(main, ["estimate", "gpt2", "--gpu", "h100-sxm-80gb", "--tp", "4"])
    assert table.exit_code == 0, table.stderr
    assert "tp 4" in table.stdout
    assert "collective" in table.stdout
