"""What was asked for and changes nothing is refused; what a search leaves idle in its plans is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import torchperf
from torchperf import hardware
from torchperf.graph.errors import TorchperfError
from torchperf.graph.graph import Capture
from torchperf.graph.plan import Plan
from torchperf.local_program import How
from torchperf.pipeline import load_system, planner_of
from torchperf.rank_program import RankProgram, split

GPU = "h100-sxm-80gb"
IDLE: list[tuple[dict[str, Any], str]] = [
    ({"sequence_parallel": True}, "--sequence-parallel"),
    ({"tp_plan": "hf"}, "--tp-plan hf"),
    ({"pp_split": (3,)}, "--pp-split 3"),
    ({"schedule": "1f1b"}, "--schedule 1f1b"),
    ({"cp_kind": "ring"}, "--cp-kind ring"),
    ({"moe_imbalance": 2.0}, "--moe-imbalance 2"),
    ({"expert_tp": 1}, "--expert-tp 1"),
    ({"zero_stage": 2}, "--zero 2"),
    ({"reduce_dtype": "fp32"}, "--reduce-dtype fp32"),
    ({"reshard": False}, "--no-reshard"),
    ({"dp": 4, "dp_shard": 2, "zero_stage": 0}, "--dp-shard 2"),
    ({"dp": 2, "zero_stage": 1, "reshard": False}, "--no-reshard"),
    ({"goodput": 0.9}, "--goodput"),
    ({"price_per_gpu_hour": 2.0}, "--price"),
]


@pytest.mark.parametrize(("asked", "flag"), IDLE, ids=[flag for _, flag in IDLE])
def test_refused_by_name(shallow: Callable[..., Capture], asked: dict[str, Any], flag: str) -> None:
    with pytest.raises(TorchperfError, match=f"`{flag}` has no effect") as caught:
        torchperf.estimate(shallow("llama"), gpu=GPU, **asked)
    assert "leave it out" in (caught.value.hint or "")


@pytest.mark.parametrize(
    "asked",
    [
        {"tp": 2, "sequence_parallel": True},
        {"cp": 2, "zero_stage": 3, "reshard": False, "reduce_dtype": "bf16", "cp_kind": "ring"},
        {"dp": 2, "zero_stage": 3, "reshard": False},
        {"dp": 4, "dp_shard": 1},
        {"pp": 3, "pp_split": (1, 1, 1), "schedule": "gpipe"},
        {"pp": 3, "reduce_dtype": "bf16"},
        {"zero_stage": 2, "offload": "optimizer"},
        {"recompute": "full:3"},
        {"tokens": 1e9, "goodput": 0.9, "price_per_gpu_hour": 2.0},
    ],
    ids=str,
)
def test_taken_where_it_has_one(shallow: Callable[..., Capture], asked: dict[str, Any]) -> None:
    assert torchperf.estimate(shallow("llama"), gpu=GPU, seq_len=64, **asked).step_time_s > 0


def test_more_layers_than_a_stage_has(shallow: Callable[..., Capture]) -> None:
    with pytest.raises(TorchperfError, match="counts more layers than a stage has") as caught:
        torchperf.estimate(shallow("llama"), gpu=GPU, pp=3, recompute="full:2")
    assert caught.value.facts == (("layers of a stage", "1"),)


def test_recompute_beside_a_plan_counts(shallow: Callable[..., Capture]) -> None:
    plain = torchperf.estimate(shallow("llama"), gpu=GPU, plan=Plan(tp=2))
    again = torchperf.estimate(shallow("llama"), gpu=GPU, plan=Plan(tp=2), recompute="full")
    assert (plain.recompute, again.recompute) == ("none", "full")
    assert dict(again.phase_time_s)["recompute"] > 0


def test_a_planner_prices_plans_with_idle_fields(shallow: Callable[..., Capture]) -> None:
    graph = shallow("llama").bind(batch=1, seq=64)
    runtime = hardware.load_runtime("eager")
    planner = planner_of(shallow("llama"), graph, "train", load_system(GPU, None, 1, None), runtime, How())
    idle = Plan(sequence_parallel=True, zero_stage=3, cp_kind="ulysses", schedule="gpipe", moe_imbalance=2.0)
    assert planner.step(idle.resolved()).seconds == planner.step(Plan().resolved()).seconds


def test_imbalance_is_in_the_bytes_of_a_rank(captured: Callable[..., Capture]) -> None:
    def exchanged(found: RankProgram) -> list[int]:
        return [c.nbytes for c in found.collectives if c.kind == "all_to_all"]

    even, uneven = (
        exchanged(split(captured("mixtral-8x7b"), seq_len=512, plan=Plan(ep=2, moe_imbalance=f))) for f in (1.0, 1.5)
    )
    assert even
    assert uneven == [1.5 * nbytes for nbytes in even]


@pytest.mark.parametrize("stages", [2, 3])
def test_dualpipe_has_no_virtual_stages(stages: int) -> None:
    """Each rank holds one stage of each direction: more chunks would be left out of the step."""
    with pytest.raises(TorchperfError, match="one stage for each direction"):
        Plan(pp=4, virtual_stages=stages, schedule="dualpipe").resolved()
