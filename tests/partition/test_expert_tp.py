"""Experts left whole by tensor parallelism: each rank routes its own tokens, and the numbers stay the whole's."""

from __future__ import annotations

import importlib.util
import sys
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import torchperf
from torchperf.annotate.registry import work
from torchperf.graph.errors import TorchperfError
from torchperf.graph.graph import Graph
from torchperf.partition.expert_parallel import expert_parallel
from torchperf.partition.plan_file import plan_of
from torchperf.partition.tensor_parallel import TensorParallel, tensor_parallel


def helper(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


models, ranks_of = helper("expert_models"), helper("expert_tp_ranks")
KINDS = ("mixtral", "qwen3_moe", "deepseek_v3", "gpt_oss", "EveryToken", "ScoresInside")
BATCH, SEQ, CHOICES, HIDDEN = 2, 28, 2, 32  # 14 or 7 tokens a rank: sizes that no other dim of a layer has


@pytest.fixture(scope="module")
def moe(tiny: Callable[..., Any], cache_folder: Path) -> Callable[[str], Graph]:
    """`moe("mixtral")`: 2 sequences of 28 tokens, forward and backward."""
    return cache(lambda kind: models.bound(kind, tiny, BATCH, SEQ))


@pytest.fixture
def split(moe: Callable[[str], Graph], monkeypatch: pytest.MonkeyPatch) -> Callable[..., TensorParallel]:
    """`split("mixtral", 2)`: the plan that communication for free would find, as for a model of full size."""
    monkeypatch.setattr("torchperf.partition.infer.S_PER_COLLECTIVE", 0.0)
    monkeypatch.setattr("torchperf.partition.infer.SENT_PER_S", 1e14)

    def make(kind: str, ranks: int = 2, *, local: bool = True, **flags: Any) -> TensorParallel:
        return tensor_parallel(moe(kind), ranks, sequence=True, strict=False, local_experts=local, **flags)

    return make


def collectives(found: TensorParallel, phase: str, role: str = "activation") -> Counter[tuple[str, str]]:
    """(kind, last two parts of the module) -> how many, within layers."""
    seen: Counter[tuple[str, str]] = Counter()
    for block, count in zip(found.program.blocks, found.program.counts, strict=True):
        for op in block.ops if block.module and block.phase == phase else ():
            if op.attr("axis") and (
                op.attr("role") == role or (role == "activation" and op.attr("role") == "regather")
            ):
                seen[op.name.removeprefix("torchperf."), ".".join(op.module.split(".")[-2:])] += count
    return seen


def summed_gradients(found: TensorParallel) -> list[str]:
    """Names of the parameters whose gradients the ranks sum."""
    placement = found.plan.placement
    blocks = placement.prepared.factors.graph.blocks
    every = [c for c in placement.collectives if c.role == "gradient"]
    assert {c.kind for c in every} == {"all_reduce"}
    return [blocks[c.block].storages[c.slot].name or "" for c in every]


def products(graph: Graph) -> list[Any]:
    return [(op, n) for op, n in graph.ops() if op.name == "aten._grouped_mm.default"]


@pytest.mark.parametrize(("kind", "ranks"), [*((kind, 2) for kind in KINDS), ("EveryToken", 4), ("deepseek_v3", 4)])
def test_numbers_are_those_of_one_device(
    moe: Callable[[str], Graph], split: Callable[..., TensorParallel], kind: str, ranks: int
) -> None:
    """Layers' outputs and the gradients of their inputs, slice by slice; weights' gradients, experts' once summed."""
    found = split(kind, ranks)
    side = ranks_of.Ranks(moe(kind), found, BATCH, SEQ).run()
    assert not side.wrong
    assert side.experts <= set(side.gradients)
    assert len(side.experts) >= 2
    assert side.left >= 4


def test_the_checker_sees_a_router_whose_gradient_is_not_summed(
    moe: Callable[[str], Graph], split: Callable[..., TensorParallel]
) -> None:
    side = ranks_of.Ranks(moe("mixtral"), split("mixtral", norm_gradients=False), BATCH, SEQ).run()
    missing = {text.split(" on ")[0] for text in side.wrong}
    assert missing == {f"model.layers.*.{p}.weight" for p in (
        "mlp.gate", "post_attention_layernorm", "input_layernorm")}  # fmt: skip


@pytest.mark.parametrize("kind", ["mixtral", "qwen3_moe", "gpt_oss"])
def test_tokens_come_and_go_as_slices(split: Callable[..., TensorParallel], kind: str) -> None:
    """Nothing is gathered before the experts or scattered after them; attention's stay."""
    found, whole = split(kind), split(kind, local=False)
    assert not found.plan.placement.conflicts
    for phase, gathers in (("forward", 1), ("backward", 2)):
        own = collectives(found, phase)
        assert {kind for kind, _ in own} == {"all_gather", "reduce_scatter"}
        assert sum(n for (_, module), n in own.items() if "mlp" in module or "expert" in module) == 0
        assert sum(own.values()) == 2 * (gathers + 1)
        assert sum(collectives(whole, phase).values()) > sum(own.values())
    summed = summed_gradients(found)
    assert {name for name in summed if "experts" in name} == set()
    assert len({name for name in summed if ".mlp." in name}) == (2 if kind == "gpt_oss" else 1)  # the router's, a bias


def test_a_shared_expert_is_split_as_before(split: Callable[..., TensorParallel]) -> None:
    found = split("deepseek_v3")
    shapes = {p.names[0]: p.shape for p in found.program.facts.parameters}
    assert shapes["model.layers.1.mlp.shared_experts.up_proj.weight"] == (8, HIDDEN)
    assert shapes["model.layers.1.mlp.experts.down_proj"] == (8, HIDDEN, 16)
    forward = collectives(found, "forward")
    assert forward["all_gather", "shared_experts.gate_proj"] == 2
    inside = {key: n for key, n in forward.items() if "expert" in key[1] or key[1].endswith("mlp")}
    assert inside == {("all_gather", "shared_experts.gate_proj"): 2, ("reduce_scatter", "*.mlp"): 2}
    for block in found.program.blocks:  # the shared expert's sum is scattered before it meets the routed slice
        for op in block.ops:
            if op.name == "aten.add.Tensor" and op.module.endswith(".mlp") and block.phase == "forward":
                assert {v.shape for v in op.inputs} == {(BATCH, SEQ // 2, HIDDEN)}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ranks", [2, 4])
def test_each_rank_has_its_rows_and_all_experts(
    moe: Callable[[str], Graph], split: Callable[..., TensorParallel], kind: str, ranks: int
) -> None:
    graph, found = moe(kind), split(kind, ranks)
    before = {p.names[0]: p.shape for p in graph.facts.parameters}
    after = {p.names[0]: p.shape for p in found.program.facts.parameters}
    assert found.experts
    assert all(after[name] == before[name] for name in found.experts)
    if kind != "EveryToken":
        rows = BATCH * SEQ * CHOICES // ranks
        assert all(rows in op.inputs[0].shape for op, _ in products(found.program))
        offs = [op.operand("offs") for op, _ in products(found.program)]
        assert {v.shape for v in offs} == {op.operand("offs").shape for op, _ in products(graph)}
    for name in ("aten._grouped_mm.default", "aten.bmm.default"):
        whole = sum(n * work(op).flops for op, n in graph.ops() if op.name == name)
        assert ranks * sum(n * work(op).flops for op, n in found.program.ops() if op.name == name) == whole
    largest = [
        max(int(s.nbytes) for b in g.blocks for s in b.storages if s.kind == "activation")  # type: ignore[arg-type]
        for g in (found.program, graph)
    ]
    assert largest[0] <= largest[1]


@pytest.mark.parametrize("kind", ["mixtral", "deepseek_v3", "gpt_oss"])
def test_expert_parallelism_takes_the_ranks_of_tensor_parallelism(
    moe: Callable[[str], Graph], split: Callable[..., TensorParallel], kind: str
) -> None:
    """Half the rows go out, to experts that neighbours hold."""
    local = split(kind)
    found = expert_parallel(local.program, 4, stride=1)
    sent = [op for op, _ in found.program.ops() if op.name == "torchperf.all_to_all"]
    assert {dict(work(op).dims)["nbytes"] for op in sent} == {BATCH * SEQ * CHOICES // 2 * HIDDEN * 2}
    assert {op.attr("stride") for op in sent} == {1}
    assert found.parameters == local.experts
    shapes = {p.names[0]: p.shape for p in found.program.facts.parameters}
    for p in moe(kind).facts.parameters:
        if p.names[0] in found.parameters:
            assert shapes[p.names[0]] == (p.shape[0] // 4, *p.shape[1:])


def test_the_models_own_plan_leaves_its_experts_whole(moe: Callable[[str], Graph]) -> None:
    graph = moe("qwen3_moe")
    plan = plan_of(graph, "hf")
    assert plan is not None
    assert plan["model.layers.*.mlp.experts.down_proj"] == "rowwise"
    found = tensor_parallel(graph, 2, sequence=True, plan=plan, local_experts=True)
    skipped = {v.reason.split(":")[0] for v in found.plan.verdicts if v.verdict == "skipped"}
    assert skipped == {"model.layers.*.mlp.experts.gate_up_proj"}  # by the leaf that it shares with down_proj
    assert not ranks_of.Ranks(graph, found, BATCH, SEQ).run().wrong


def test_a_plan_that_splits_experts_through_others(moe: Callable[[str], Graph]) -> None:
    with pytest.raises(TorchperfError, match="splits experts through") as caught:
        tensor_parallel(
            moe("mixtral"), 2, sequence=True, plan={"model.layers.*.mlp.experts.down_proj": "colwise"},
            local_experts=True,
        )  # fmt: skip
    assert ("flag", "--expert-tp 1") in caught.value.facts


def test_without_sequence_parallelism(moe: Callable[[str], Graph]) -> None:
    with pytest.raises(TorchperfError) as caught:
        tensor_parallel(moe("mixtral"), 2, local_experts=True)
    assert "--sequence-parallel" in (caught.value.hint or "")
    assert ("flag", "--expert-tp 1") in caught.value.facts


def test_a_model_without_experts(tiny: Callable[..., Any]) -> None:
    with pytest.raises(TorchperfError, match="no experts") as caught:
        tensor_parallel(tiny("llama").factors.graph, 2, sequence=True, local_experts=True)
    assert "--expert-tp" in (caught.value.hint or "")


def test_a_step(captured: Callable[..., Any]) -> None:
    """Qwen3-30B-A3B over 8 devices: the same FLOPs; half the experts' rows to keep; experts once in each EP group."""

    def run(**plan: Any) -> Any:
        return torchperf.estimate(
            captured("qwen3-30b-a3b"), gpu="h100-sxm-80gb", runtime="megatron-core", seq_len=4096, attention="flash",
            tp=2, sequence_parallel=True, dp=4, **plan,
        )  # fmt: skip

    both, apart, alone = run(ep=4), run(ep=4, expert_tp=1), run(expert_tp=1)
    assert both.num_gpus == apart.num_gpus == alone.num_gpus == 8
    for one in (apart, alone):
        assert one.flops.model == pytest.approx(both.flops.model, rel=1e-6)
        assert one.memory.activations < both.memory.activations
    experts = 48 * 128 * 3 * 2048 * 768 * 2  # layers, experts, three weights, bf16
    dense = both.memory.parameters - experts / 8
    assert apart.memory.parameters == pytest.approx(experts / 4 + dense, rel=1e-3)
    assert alone.memory.parameters == pytest.approx(experts + dense, rel=1e-3)
    spent = [{c.axis: c.exposed + c.hidden for c in one.communication} for one in (both, apart)]
    assert spent[1]["tp"] < spent[0]["tp"]
    assert spent[1]["ep"] < spent[0]["ep"]
