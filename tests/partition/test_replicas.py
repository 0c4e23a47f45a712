"""Data parallelism once a step: groups, collectives, bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchperf.graph.graph import Parameter
from torchperf.graph.plan import Plan
from torchperf.partition.replicas import gradient_sync, groups, mirror

DENSE = Parameter(("a",), (1000, 8), "bf16", True, 0)
EXPERT = Parameter(("e",), (16, 100), "bf16", True, 1)
FROZEN = Parameter(("f",), (5, 5), "bf16", False, 2)
POWERS = st.sampled_from([1, 2, 4, 8])


def sizes(block) -> list[tuple[str, int, int, str]]:
    return [
        (op.name.removeprefix("torchperf."), max(op.inputs[0].nbytes, op.outputs[0].nbytes), op.attr("ranks"),
         op.inputs[0].dtype)
        for op in block.ops
    ]  # fmt: skip


def sync(plan: Plan, bucket: int = 0):
    return gradient_sync([DENSE, EXPERT, FROZEN], plan, frozenset({"e"}), bucket, "bf16")


@given(tp=POWERS, cp=POWERS, shard=POWERS, copies=POWERS, ep=POWERS)
def test_groups_fill_the_mesh(tp: int, cp: int, shard: int, copies: int, ep: int) -> None:
    """dense: cp x dp ranks hold a parameter; an expert is held by ep times fewer; strides do not overlap."""
    if (cp * shard * copies) % ep:
        return
    plan = Plan(tp=tp, cp=cp, dp=shard * copies, dp_shard=shard, ep=ep).resolved()
    dense, experts = groups(plan), groups(plan, experts=True)
    assert dense.ranks == cp * plan.dp
    assert experts.ranks * ep == dense.ranks
    assert dense.shard.stride == tp
    assert dense.replicate.stride == tp * dense.shard.ranks
    assert experts.replicate.stride == tp * ep * experts.shard.ranks
    assert experts.replicate.stride * experts.replicate.ranks == tp * dense.ranks
    apart = Plan(tp=tp, cp=cp, dp=shard * copies, dp_shard=shard, ep=ep, expert_tp=1).resolved()
    assert groups(apart, experts=True).ranks * ep == tp * dense.ranks


def test_zero_0_reduces_all_and_frozen_parameters_are_left_out() -> None:
    done = sync(Plan(dp=8, ep=2, zero_stage=0).resolved())
    assert sizes(done.reduce) == [("all_reduce", 4 * 8000, 8, "fp32"), ("all_reduce", 4 * 1600, 4, "fp32")]
    assert done.gather.ops == ()


def test_zero_1_scatters_gradients_and_gathers_weights() -> None:
    done = sync(Plan(dp=8, zero_stage=1, reduce_dtype="bf16").resolved())
    assert sizes(done.reduce) == [("reduce_scatter", 2 * 8000, 8, "bf16"), ("reduce_scatter", 2 * 1600, 8, "bf16")]
    assert sizes(done.gather) == [("all_gather", 2 * 8000, 8, "bf16"), ("all_gather", 2 * 1600, 8, "bf16")]


def test_zero_2_scatters_every_micro_batch() -> None:
    done = sync(Plan(dp=8, zero_stage=2, global_batch=32).resolved())
    assert len([s for s in sizes(done.reduce) if s[1] == 4 * 8000]) == 4


def test_hybrid_sharding_sums_the_shards_between_copies() -> None:
    done = sync(Plan(dp=8, dp_shard=4, zero_stage=3).resolved())
    assert sizes(done.reduce) == [("all_reduce", 4 * 2000, 2, "fp32"), ("all_reduce", 4 * 400, 2, "fp32")]
    assert {op.attr("stride") for op in done.reduce.ops} == {4}


@pytest.mark.parametrize("bucket", [1, 4096, 10_000, 10**9])
def test_buckets_share_the_bytes(bucket: int) -> None:
    whole, cut = sync(Plan(dp=8, zero_stage=0).resolved()), sync(Plan(dp=8, zero_stage=0).resolved(), bucket)
    total = sum(s[1] for s in sizes(whole.reduce))
    assert sum(s[1] for s in sizes(cut.reduce)) == total
    assert len(cut.reduce.ops) == max(1, 32000 // bucket) + max(1, 6400 // bucket) if bucket > 4 else True


def test_dualpipe_alone_has_two_copies_of_a_stage() -> None:
    """Ranks r and pp - 1 - r, on a mesh where stages are tp x dp ranks apart."""
    plan = Plan(pp=4, tp=2, dp=2, schedule="dualpipe").resolved()
    apart = [(group.ranks, group.stride) for group in (mirror(plan, rank) for rank in range(4)) if group]
    assert apart == [(2, 4 * 3), (2, 4), (2, 4), (2, 4 * 3)]
    for schedule in ("1f1b", "gpipe", "zb-h1"):
        assert mirror(Plan(pp=4, schedule=schedule).resolved(), 0) is None


@pytest.mark.parametrize(("zero", "held"), [(0, 8000), (1, 8000 // 8), (3, 8000 // 8)])
def test_the_copies_of_a_stage_sum_what_data_parallelism_leaves(zero: int, held: int) -> None:
    plan = Plan(pp=4, dp=8, zero_stage=zero, schedule="dualpipe", reduce_dtype="bf16").resolved()
    done = gradient_sync([DENSE], plan, frozenset(), 0, "bf16", mirror(plan, 0))
    last = done.reduce.ops[-1]
    assert sizes(done.reduce)[-1] == ("all_reduce", 2 * held, 2, "bf16")
    assert (last.attr("axis"), last.attr("stride")) == ("pp", 8 * 3)
    assert len(done.reduce.ops) == len(gradient_sync([DENSE], plan, frozenset(), 0, "bf16").reduce.ops) + 1
