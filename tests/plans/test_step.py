"""A step under a plan: what is conserved whatever the plan, and what must grow or shrink with it."""

from __future__ import annotations

import pytest

import torchperf
from torchperf import hardware, pipeline
from torchperf.explanation_memory import memory
from torchperf.graph.errors import TorchperfError
from torchperf.graph.estimate import Estimate
from torchperf.graph.plan import Plan
from torchperf.local_program import How
from torchperf.step import Planner

LLAMA, MIXTRAL, GPT2 = "llama-3.1-8b", "mixtral-8x7b", "gpt2"
PLANS = [
    {"tp": 4, "sequence_parallel": True},
    {"pp": 4, "global_batch": 8},
    {"pp": 4, "virtual_stages": 2, "global_batch": 8, "tp": 2},
    {"pp": 2, "schedule": "gpipe", "global_batch": 4},
    {"pp": 2, "schedule": "zb-h1", "global_batch": 8},
    {"pp": 4, "schedule": "dualpipe", "global_batch": 8},
    {"cp": 4},
    {"cp": 4, "cp_kind": "ulysses", "tp": 2},
    {"dp": 8, "zero_stage": 0},
    {"dp": 8, "zero_stage": 1},
    {"dp": 8, "zero_stage": 2, "global_batch": 16},
    {"dp": 8, "zero_stage": 3},
    {"dp": 8, "dp_shard": 2, "tp": 2},
    {"dp": 4, "zero_stage": 3, "reshard": False},
]


@pytest.fixture(scope="module")
def run(captured):
    def make(model: str = LLAMA, **how: object) -> Estimate:
        given = {"gpu": "h100-sxm-80gb", "runtime": "megatron-core", "seq_len": 2048, "attention": "flash", **how}
        return torchperf.estimate(captured(model, mode=given.get("mode", "train")), **given)

    return make


@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_flops_and_states_are_conserved(run, plan: dict[str, object]) -> None:
    """Model FLOPs a token, over all devices, are those of one device; so are weights and states, sharded or copied."""
    one, many = run(), run(**plan)
    per_token = many.flops.model * many.num_gpus / many.tokens_per_step
    assert per_token == pytest.approx(one.flops.model / one.tokens_per_step, rel=1e-3)
    assert many.mfu[0].flops_per_token == one.mfu[0].flops_per_token
    assert sum(seconds for _, seconds in many.phase_time_s) == pytest.approx(many.step_time_s)
    m = many.memory
    rows = m.parameters + m.buffers + m.gradients + m.optimizer + m.activations + m.logits_loss + m.temporary
    assert m.peak == rows + m.gathered + m.buckets
    assert m.device == m.reserved + m.context


@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_states_over_the_ranks_are_the_whole(run, plan: dict[str, object]) -> None:
    """Weights, gradients and optimizer states, summed over all that share a copy of them; norms are on each tp rank."""
    e, whole = run(**plan), run().memory
    shard, tp = e.plan.dp_shard * e.plan.cp, e.plan.tp
    norms = (2 * 32 + 1) * 4096 * (tp - 1)
    copies = 2 if plan.get("schedule") == "dualpipe" else 1
    stages = e.stages or (e.memory,)
    for name, width, stage in (("parameters", 2, 3), ("gradients", 4, 2), ("optimizer", 12, 1)):
        held = sum(getattr(m, name) for m in stages) * tp * (shard if e.plan.zero_stage >= stage else 1)
        assert held == pytest.approx(copies * (getattr(whole, name) + width * norms), rel=1e-6), name


def test_weights_are_sharded_in_forward_too(run) -> None:
    one, many = run(mode="forward").memory, run(mode="forward", dp=8, zero_stage=3).memory
    assert many.parameters * 8 == pytest.approx(one.parameters, rel=1e-6)


@pytest.mark.parametrize(("zero", "copied"), [(0, True), (1, True), (3, False)])
def test_buckets_of_ddp_are_copies_of_the_gradients(run, zero: int, copied: bool) -> None:
    assert run(runtime="eager").memory.buckets == 0
    m = run(runtime="eager", dp=4, zero_stage=zero).memory
    assert m.buckets == (m.gradients if copied else 0)
    assert run(dp=4, zero_stage=zero).memory.buckets == 0  # Megatron's gradients lie in theirs


def test_put_off_weight_gradients_hold_what_they_read(run) -> None:
    """ZB-H1: the last stage holds one micro-batch whole, and what pp - 1 weight parts read; under 1F1B none."""
    plan = {"pp": 4, "global_batch": 8}
    one, split = run(**plan).stages, run(schedule="zb-h1", **plan).stages
    assert split[0].activations == one[0].activations
    more = [b.activations - a.activations for a, b in zip(one, split, strict=True)]
    assert more[1] < more[2] < more[3]
    assert [m.in_flight for m in split] == [m.in_flight for m in one]


@pytest.mark.parametrize(
    ("zero", "weights", "gradients", "states"), [(0, 1, 1, 1), (1, 1, 1, 8), (2, 1, 8, 8), (3, 8, 8, 8)]
)
def test_what_each_stage_of_zero_shares_out(run, zero: int, weights: int, gradients: int, states: int) -> None:
    one, many = run().memory, run(dp=8, zero_stage=zero).memory
    assert many.parameters * weights == pytest.approx(one.parameters, rel=1e-4)
    assert many.gradients * gradients == pytest.approx(one.gradients, rel=1e-4)
    assert many.optimizer * states == pytest.approx(one.optimizer, rel=1e-4)
    assert (many.gathered > 0) == (zero == 3)


def test_sharded_fp32_parameters_are_their_own_masters(run) -> None:
    """FSDP: 4 bytes of weight, 4 of gradient, 8 of state, all sharded; no 16-bit copy."""
    e = run(runtime="fsdp-compile", dp=8)
    assert e.plan.zero_stage == 3
    whole = 4 * e.parameters / 8
    assert e.memory.parameters == pytest.approx(whole, rel=1e-6)
    assert e.memory.gradients == pytest.approx(whole, rel=1e-6)
    assert e.memory.optimizer == pytest.approx(2 * whole, rel=1e-6)
    assert sum(n for _, n in e.memory.bytes_per_parameter) == 16


def test_fsdp_under_a_pipeline_keeps_weights_and_gradients_whole(run) -> None:
    """torchtitan: no reshard after forward, no gradient sync before the last backward, which sums in fp32."""
    e = run(runtime="torchtitan-2024", pp=2, dp=4, zero_stage=3, global_batch=16)
    numel = e.memory.parameters / 2
    assert numel * 2 == pytest.approx(e.parameters, rel=0.05)
    assert e.memory.gradients == pytest.approx(4 * numel, rel=1e-6)
    assert e.memory.optimizer == pytest.approx(12 * numel / 4, rel=1e-6)
    assert e.memory.gathered == 0
    assert any("ZeRO 3 takes the memory of ZeRO 1" in text for text in e.assumptions)
    assert run(runtime="torchtitan-2024", dp=4, zero_stage=3).plan.zero_stage == 3
    assert run(runtime="llm-foundry", pp=2, dp=4, zero_stage=3).plan.zero_stage == 3


def test_deepspeed_steps_on_flat_copies_of_its_share(run) -> None:
    """A partition's gradients in 16 and in 32 bits, and the bucket of 500,000,000 elements that they are reduced in."""
    m = run(GPT2, runtime="megatron-deepspeed", precision="fp16-mixed", dp=4, zero_stage=1, seq_len=512).memory
    numel = m.parameters / 2
    assert m.gradients == pytest.approx(2 * numel, rel=1e-6)
    assert m.reserve == pytest.approx(1573 * 2**20 + 0.05 * m.peak + 6 * numel / 4 + 1e9, rel=1e-6)


def test_the_bf16_optimizer_of_deepspeed_holds_gradients_in_two_dtypes(run) -> None:
    m = run(GPT2, runtime="megatron-deepspeed-bf16", dp=4, zero_stage=1, seq_len=512).memory
    assert m.gradients == pytest.approx((4 + 2) * m.parameters / 2, rel=1e-6)
    assert ("gradients fp32 and bf16", 6.0) in m.bytes_per_parameter


def test_1f1b_holds_as_many_micro_batches_as_stages(run) -> None:
    assert run(pp=4, global_batch=32).memory.in_flight == 4
    assert run(pp=4, global_batch=2).memory.in_flight == 2
    assert run(pp=4, global_batch=32, schedule="gpipe").memory.in_flight == 32


def test_communication_is_told_by_axis(run) -> None:
    e = run(MIXTRAL, ep=4, dp=4, cp=2, tp=2, pp=2, sequence_parallel=True, global_batch=8)
    assert {c.axis for c in e.communication} >= {"cp", "dp", "ep", "pp", "tp"}
    assert all(c.exposed >= 0 and c.hidden >= 0 for c in e.communication)


def test_transfers_between_stages_have_a_row_of_their_own(run) -> None:
    """They take as long under both runtimes; the one that computes meanwhile exposes less of it."""
    assert "pp" not in {c.axis for c in run(tp=2).communication}
    (hides,) = [c for c in run(pp=4, global_batch=16).communication if c.axis == "pp"]
    (waits,) = [c for c in run(pp=4, global_batch=16, runtime="megatron-deepspeed").communication if c.axis == "pp"]
    assert hides.exposed + hides.hidden == pytest.approx(waits.exposed + waits.hidden)
    assert 0 <= hides.exposed < waits.exposed


def test_a_vocabulary_left_whole_is_told(run) -> None:
    """GPT-2, tp 4: 50,257 x 768 x 2 bytes, 3/4 of them above the share."""
    (told,) = [text for text in run(GPT2, tp=4, seq_len=512).assumptions if "is whole on each tp rank" in text]
    assert told.startswith("`transformer.wte.weight` is whole on each tp rank: 4 does not divide 50,257 vocab; ")
    assert f"{50257 * 768 * 2 * 3 / 4 / 1e6:.1f} MB of weights" in told
    assert "padded to 50,688, as Megatron-LM pads to a multiple of 128 x tp" in told
    assert not [text for text in run(tp=8).assumptions if "is whole on each tp rank" in text]


def test_experts_are_shared_out_and_imbalance_costs(run) -> None:
    plan = {"dp": 8, "zero_stage": 1}
    dense, split = run(MIXTRAL, **plan), run(MIXTRAL, ep=8, **plan)
    experts = 2 * 32 * 8 * 3 * 4096 * 14336
    assert dense.memory.parameters - split.memory.parameters == experts * 7 // 8
    assert dense.memory.optimizer == pytest.approx(split.memory.optimizer, rel=1e-4)  # both over 8 ranks in all
    skewed = run(MIXTRAL, ep=8, moe_imbalance=1.5, **plan)
    assert skewed.step_time_s > split.step_time_s
    assert skewed.flops == split.flops
    assert skewed.memory.activations > split.memory.activations


def test_offload_moves_states_to_the_host_and_takes_time(run) -> None:
    near = run(dp=8, zero_stage=1)
    far, further = (run(dp=8, zero_stage=1, offload=how) for how in ("optimizer", "params+optimizer"))
    assert far.memory.host == near.memory.optimizer
    assert far.memory.optimizer == 0
    assert further.memory.host == near.memory.optimizer + near.memory.parameters
    assert further.memory.parameters * 16 == pytest.approx(near.memory.parameters, rel=1e-3)
    assert near.step_time_s < far.step_time_s < further.step_time_s


def test_offload_moves_what_a_rank_owns(run) -> None:
    """Experts over 8 ranks have one owner each: ZeRO shares the rest out, and their gradients go down as before."""
    plan = {"ep": 8, "dp": 8, "offload": "optimizer"}
    seconds = [dict(run(MIXTRAL, zero_stage=zero, **plan).phase_time_s)["offload"] for zero in (0, 1)]
    e = run(MIXTRAL, zero_stage=1, ep=8, dp=8)
    experts = 32 * 3 * 4096 * 14336
    rest = e.memory.parameters / 2 - experts
    assert seconds[0] / seconds[1] == pytest.approx((experts + rest) / (experts + rest / 8), rel=1e-3)


def test_a_forward_pass_waits_for_weights_from_the_host(run) -> None:
    near, far = (run(mode="forward", offload=how) for how in ("none", "params+optimizer"))
    link = hardware.load_system("dgx-h100").host_link.bandwidth.value
    assert far.step_time_s - near.step_time_s == pytest.approx(near.memory.parameters / link, rel=1e-6)
    assert far.memory.parameters < near.memory.parameters


def test_more_micro_batches_cost_no_more_than_their_share(run) -> None:
    one, four = run(dp=2, global_batch=2), run(dp=2, global_batch=8)
    assert one.step_time_s < four.step_time_s < 4 * one.step_time_s
    assert four.tokens_per_step == 4 * one.tokens_per_step
    assert four.tokens_per_s > one.tokens_per_s


def test_a_first_share_of_layers_is_recomputed(run) -> None:
    none, some, every = (run(recompute=how, pp=2, global_batch=4) for how in ("none", "full:4", "full"))
    assert 0 == none.flops.recompute < some.flops.recompute < every.flops.recompute
    assert some.flops.recompute * 4 == pytest.approx(every.flops.recompute, rel=1e-6)
    assert none.memory.activations > some.memory.activations > every.memory.activations


def test_tied_weights_are_summed_between_the_ends(run) -> None:
    """GPT-2 over two stages: an all_reduce of wte's gradient."""
    calls = {s.name: s for s in run(GPT2, pp=2, global_batch=4, seq_len=512, runtime="eager").by_kind}
    assert calls["collective"].nbytes >= 4 * 50257 * 768


def test_a_whole_run(run) -> None:
    e = run(tokens=1e12, goodput=0.5, dp=8)
    assert e.run is not None
    assert e.run.steps == -(-(10**12) // e.tokens_per_step)
    assert e.run.seconds == pytest.approx(2 * e.run.steps * e.step_time_s)
    with pytest.raises(TorchperfError, match="`--goodput 0` is no share"):
        run(tokens=1e9, goodput=0.0)


def test_errors_name_what_to_change(run) -> None:
    with pytest.raises(TorchperfError, match="unknown argument `zero`"):
        run(zero=1)
    with pytest.raises(TorchperfError, match="a sequence of 2050"):
        run(cp=4, seq_len=2050)
    with pytest.raises(TorchperfError, match="no experts"):
        run(ep=2)


@pytest.mark.parametrize(("runtime", "calls", "nbytes"), [("megatron-core", 1, 4), ("torchtitan-2024", 8 * 65, 2)])
def test_when_gradients_of_norms_are_summed(captured, runtime: str, calls: int, nbytes: int) -> None:
    """Megatron sums all 65 norms' as one, in fp32, at the end of the step; torchtitan each, in each backward."""
    graph = captured(LLAMA).bind(batch=1, seq=2048)
    system, loaded = hardware.load_system("dgx-h100"), hardware.load_runtime(runtime)
    planner = Planner(lambda _: graph, 2048, system, loaded, How())
    step = planner.step(Plan(tp=4, sequence_parallel=True, global_batch=8).resolved())
    small = 65 * 4096 * 4
    rows = [
        (n, op) for n, op, _, _ in step.rows if op.name == "torchperf.all_reduce" and 8 < op.inputs[0].nbytes <= small
    ]
    sums = [(n, op) for n, op in rows if op.attr("role") == "gradient" or op.inputs[0].nbytes == small]
    assert sum(n for n, _ in sums) == calls
    assert sum(n * op.inputs[0].nbytes for n, op in sums) == nbytes * 65 * 4096 * (8 if calls > 1 else 1)


def test_only_what_a_low_precision_product_reads_is_gathered_narrow(run) -> None:
    """The embedding, the head and the norms of Llama 8B stay 16 bits in torchao's 8-bit gathers."""
    how = {"runtime": "fsdp-compile", "dp": 8, "zero_stage": 3, "recompute": "selective-ops"}
    wide, narrow = run(**how).memory.gathered, run(precision="fp8-tensorwise", **how).memory.gathered
    layer = 4096 * (4096 + 2 * 1024 + 4096 + 3 * 14336)
    assert wide - narrow == pytest.approx(layer, rel=1e-3)


@pytest.mark.parametrize(
    "plan",
    [{"pp": 4, "schedule": "zb-h1", "global_batch": 8}, {"mode": "forward", "dp": 8, "zero_stage": 3}],
    ids=str,
)
def test_the_explanation_of_memory_names_every_byte(captured, plan: dict[str, object]) -> None:
    given = {"gpu": "h100-sxm-80gb", "runtime": "megatron-core", "seq_len": 512, "suggest": False}
    answer, step = pipeline.estimated(captured(GPT2, mode=str(plan.get("mode", "train"))), **given, **plan)
    found = memory(answer.memory, step)
    assert found.value == answer.memory.device
    rests = [line.value for row in found.lines for line in row.lines if line.name == "rounding"]
    assert all(abs(rest) <= 8 for rest in rests)
