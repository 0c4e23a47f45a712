"""Plans: what is left open is filled in, and what does not fit is told with the flag and what would."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchperf.graph.errors import TorchperfError
from torchperf.graph.plan import Plan, per_node

DEGREE = st.sampled_from([1, 2, 3, 4, 8])


@given(tp=DEGREE, cp=DEGREE, pp=DEGREE, dp=DEGREE, micro=st.integers(1, 4), batches=st.integers(1, 8))
def test_a_resolved_plan_covers_the_devices(tp: int, cp: int, pp: int, dp: int, micro: int, batches: int) -> None:
    """Replicas follow from the devices, micro-batches from the global batch; resolving twice changes nothing."""
    asked = Plan(tp=tp, cp=cp, pp=pp, micro_batch=micro, global_batch=micro * dp * batches)
    plan = asked.resolved(tp * cp * pp * dp)
    assert (plan.dp, plan.num_gpus, plan.micro_batches) == (dp, tp * cp * pp * dp, batches)
    assert plan.mesh.ranks == plan.num_gpus
    assert plan.resolved() == plan == plan.resolved(plan.num_gpus)
    strides = [plan.mesh.stride(axis) for axis in ("tp", "cp", "dp", "pp")]
    assert strides == [1, tp, tp * cp, tp * cp * dp]


def test_devices_follow_from_the_plan() -> None:
    assert Plan(tp=4, pp=2).resolved().num_gpus == 8
    assert Plan(tp=4, dp=3).resolved().num_gpus == 12
    assert Plan(dp_shard=8).resolved().num_gpus == 8
    assert Plan(ep=8, cp=2).resolved().dp == 4
    assert Plan(dp=8, dp_shard=2).resolved().replicate == 4


def test_sharding_is_the_default_of_who_asks_for_it() -> None:
    assert Plan(dp=8).resolved().zero_stage == 0
    assert Plan(dp_shard=8).resolved().zero_stage == 3
    assert Plan(dp=8).resolved(shards=True).zero_stage == 3
    assert Plan(dp=1).resolved(shards=True).zero_stage == 0
    assert Plan(dp=8, zero_stage=1).resolved(shards=True).zero_stage == 1
    assert Plan(pp=4, virtual_stages=2).resolved().schedule == "interleaved"


@pytest.mark.parametrize(
    ("fields", "num_gpus", "says"),
    [
        ({"tp": 8}, 12, "`--num-gpus 12` does not fit the plan"),
        ({"tp": 8, "dp": 2}, 64, "give 16 GPUs, or leave out `--dp`"),
        ({"dp": 8, "dp_shard": 3}, 0, "`--dp-shard 3` does not divide --dp = 8"),
        ({"dp": 8, "ep": 3}, 0, "nearest  2 or 4"),
        ({"tp": 0}, 0, "`--tp 0`: it must be at least 1"),
        ({"dp": -1}, 0, "`--dp -1`: it must be at least 1"),
        ({"zero_stage": 4}, 0, "`--zero 4`: it must be 0, 1, 2 or 3"),
        ({"cp_kind": "tree"}, 0, "unknown `--cp-kind tree`"),
        ({"schedule": "1f2b"}, 0, "one of gpipe, 1f1b, interleaved, zb-h1, dualpipe"),
        ({"offload": "all"}, 0, "unknown `--offload all`"),
        ({"reduce_dtype": "int8"}, 0, "unknown `--reduce-dtype int8`"),
        ({"moe_imbalance": 0.5}, 0, "`--moe-imbalance 0.5`"),
        ({"virtual_stages": 2}, 0, "`--virtual-stages 2` without a pipeline"),
        ({"pp": 2, "pp_split": (1, 2, 3)}, 0, "`--pp-split` has 3 parts"),
        ({"dp": 4, "global_batch": 6}, 0, "give a multiple of 4"),
    ],
)
def test_what_does_not_fit_is_told(fields: dict[str, object], num_gpus: int, says: str) -> None:
    with pytest.raises(TorchperfError) as error:
        Plan(**fields).resolved(num_gpus)  # type: ignore[arg-type]
    assert says in str(error.value)


@pytest.mark.parametrize(
    ("ranks", "stride", "inside"), [(8, 1, 8), (16, 1, 8), (4, 2, 4), (8, 2, 4), (8, 4, 2), (8, 8, 1), (2, 64, 1)]
)
def test_members_of_a_group_in_one_node_of_eight(ranks: int, stride: int, inside: int) -> None:
    assert per_node(ranks, stride, 8) == inside
