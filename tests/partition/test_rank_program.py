"""What `torchperf partition` lists: all that a rank runs, and the same ops that an estimate prices."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import CliRunner

import torchperf
from torchperf.annotate import work
from torchperf.cli import main
from torchperf.pipeline import estimated
from torchperf.rank_program import RankProgram

HEAD = 50257 * 768
PLANS = [
    {"pp": 2, "global_batch": 4},
    {"pp": 2, "dp": 2, "zero_stage": 1, "tp": 2},
    {"pp": 4, "schedule": "dualpipe", "global_batch": 8},
    {"dp": 4, "zero_stage": 2, "global_batch": 8},
    {"dp": 8, "zero_stage": 3},
]


@pytest.fixture(scope="module")
def listed(captured: Callable[..., Any]) -> Callable[..., RankProgram]:
    def make(runtime: str = "megatron-core", **plan: Any) -> RankProgram:
        return torchperf.split(captured("gpt2"), runtime=runtime, seq_len=512, **plan)

    return make


def once(found: RankProgram) -> list[tuple[str, str, int, str, int]]:
    return [(c.kind, c.axis, c.ranks, c.role, c.nbytes) for c in found.collectives if c.phase == "optimizer"]


@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_once_a_step_a_rank_runs_what_the_estimate_prices(
    captured: Callable[..., Any], listed: Callable[..., RankProgram], plan: dict[str, Any]
) -> None:
    found = listed(**plan)
    how = {"gpu": "h100-sxm-80gb", "runtime": "megatron-core", "seq_len": 512}
    _, step = estimated(captured("gpt2"), **how, **plan)  # type: ignore[arg-type]
    for rank, cost in enumerate(step.ranks):
        priced = Counter(
            (w.equation, op.attr("axis"), op.attr("ranks"), w.dim("nbytes"))
            for op, w, _ in cost.ops
            if w.kind == "collective"
        )
        ours: Counter[Any] = Counter()
        for c in found.collectives:
            if c.phase == "optimizer" and rank in c.stages:
                ours[c.kind, c.axis, c.ranks, c.nbytes] += c.calls
        assert ours == priced
        passes = [(op.name, op.attr("numel"), work(op).nbytes) for op, w, _ in cost.ops if w.kind != "collective"]
        assert [(f"torchperf.{p.kind}", p.numel, p.nbytes) for p in found.passes if rank in p.stages] == passes


def test_what_passes_between_stages(listed: Callable[..., RankProgram]) -> None:
    """512 x 768 bf16 on from each stage but the last, as much back from each but the first."""
    found = listed(pp=4, global_batch=4)
    sent = [(c.phase, c.role, c.nbytes, c.calls, c.stages) for c in found.collectives if c.kind == "send_recv"]
    assert sorted(sent) == [
        ("backward", "to the stage before", 512 * 768 * 2, 1, (1, 2, 3)),
        ("forward", "to the next stage", 512 * 768 * 2, 1, (0, 1, 2)),
    ]
    assert ("all_reduce", "pp", 2, "tied weights", 4 * HEAD) in once(found)
    assert ("all_reduce", "pp", 4, "norm", 8) in once(found)
    tied = next(c for c in found.collectives if c.role == "tied weights")
    assert tied.stages == (0, 3)
    assert "1 all_reduce over pp 2 of 154389504 bytes (tied weights), stages 0, 3\n" in found.text


def test_slices_of_an_activation_are_gathered_where_the_runtime_sends_them(listed: Callable[..., RankProgram]) -> None:
    found = listed("megatron-deepspeed", pp=2, tp=2, global_batch=2)
    kinds = {(c.kind, c.axis, c.nbytes) for c in found.collectives if c.stages == (0,) and c.phase == "forward"}
    assert {("send_recv", "pp", 512 * 768 * 2 // 2), ("all_gather", "tp", 512 * 768 * 2)} <= kinds


@pytest.mark.parametrize(
    ("runtime", "plan", "norm"),
    [
        ("fsdp-eager", {"dp": 8}, ("dp", 8)),
        ("eager", {"dp": 8, "zero_stage": 1}, None),
        ("torchtitan-2024", {"dp": 8, "zero_stage": 3}, ("dp", 8)),
        ("torchtitan-2024", {"dp": 8, "dp_shard": 4, "zero_stage": 3}, ("dp", 4)),
        ("megatron-core", {"dp": 8, "zero_stage": 0}, None),
        ("megatron-core", {"dp": 8, "zero_stage": 1, "tp": 2, "pp": 2, "global_batch": 16}, ("tp+dp+pp", 32)),
    ],
)
def test_the_norm_is_summed_over_every_rank_with_other_gradients(
    listed: Callable[..., RankProgram], runtime: str, plan: dict[str, Any], norm: tuple[str, int] | None
) -> None:
    found = listed(runtime, **plan)
    assert [(c.axis, c.ranks) for c in found.collectives if c.role == "norm"] == ([norm] if norm else [])


def test_dualpipe_alone_sums_the_gradients_of_both_copies(listed: Callable[..., RankProgram]) -> None:
    """Each rank holds two stages, and reduces all of their gradients in fp32 with the rank that holds them too."""
    found = listed(pp=4, schedule="dualpipe", global_batch=8)
    for rank, chunks in ((0, (0, 3)), (1, (1, 2))):
        numel = sum(p.numel for c in chunks for p in found.chunks[c].graph.facts.parameters)
        rows = [c for c in found.collectives if c.role == "gradient" and rank in c.stages]
        assert {(c.kind, c.axis, c.ranks) for c in rows} == {("all_reduce", "pp", 2)}
        assert sum(c.calls * c.nbytes for c in rows) == 4 * numel
    assert "tied weights" not in {c.role for c in found.collectives}  # both ends are on one rank
    plain = listed(pp=4, global_batch=8)
    assert not [c for c in plain.collectives if c.role == "gradient"]


@pytest.mark.parametrize("plan", [{"tp": 2}, {"tp": 2, "sequence_parallel": True}])
def test_nothing_is_exchanged_with_oneself(listed: Callable[..., RankProgram], plan: dict[str, Any]) -> None:
    found = listed(**plan)
    assert {c.axis for c in found.collectives} == {"tp"}
    assert all(c.ranks > 1 for c in found.collectives)


def test_experts_that_are_not_shared_are_not_gathered(captured: Callable[..., Any]) -> None:
    found = torchperf.split(captured("mixtral-8x7b"), seq_len=512, ep=8, dp=8, zero_stage=3)
    assert {c.ranks for c in found.collectives} == {8}


def test_reasons_in_text_and_json(captured: Callable[..., Any]) -> None:
    captured("gpt2")
    result = CliRunner().invoke(main, ["partition", "gpt2", "--tp", "2", "--pp", "2", "--json", "-"])
    assert result.exit_code == 0, result.stderr
    answer = json.loads(result.stdout)
    rows = {row["parameter"]: row for row in answer["placement"]}
    assert rows["transformer.wte.weight"]["why"].startswith("whole: 2 does not divide 50257 vocab")
    assert rows["transformer.h.*.mlp.c_fc.weight"]["split"]
    assert rows["transformer.h.*.mlp.c_fc.weight"]["saved_s"] > 0
    assert {p["kind"] for p in answer["passes"]} == {"optimizer.adamw"}
    assert {tuple(c["stages"]) for c in answer["collectives"]} >= {(0,), (1,), (0, 1)}
