"""Experts handed out over ranks: what is exchanged, what each rank holds, and that the numbers stay the whole's."""

from __future__ import annotations

import importlib.util
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import pytest

from torchperf.annotate.registry import work
from torchperf.graph.errors import TorchperfError
from torchperf.graph.graph import Block, Graph
from torchperf.graph.op import Op
from torchperf.partition.expert_parallel import ExpertParallel, expert_parallel
from torchperf.partition.local import local_program
from torchperf.rewrite import recompute
from torchperf.schedule.memory import lives, saved


def helper(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


models = helper("expert_models")
EXPERTS, ROWS = models.EXPERTS, models.ROWS


@pytest.fixture(scope="module")
def moe(tiny: Callable[..., Any], cache_folder: Path) -> Callable[[str], Graph]:
    """`moe("mixtral")`: a bound graph of 3 sequences of 7 tokens."""
    return cache(lambda kind: models.bound(kind, tiny))


def exchanges(graph: Graph) -> Iterator[tuple[Block, Op, int]]:
    for block, count in zip(graph.blocks, graph.counts, strict=True):
        for op in block.ops:
            if op.name == "torchperf.all_to_all":
                yield block, op, count


def products(graph: Graph) -> list[Op]:
    return [op for block in graph.blocks for op in block.ops if op.name in ("aten._grouped_mm.default",)]


def layers(graph: Graph) -> int:
    return sum(p.names[0].endswith("experts.down_proj") for p in graph.facts.parameters)


@pytest.mark.parametrize("kind", EXPERTS)
def test_rows_go_out_and_come_back_once_a_layer_and_phase(moe: Callable[[str], Graph], kind: str) -> None:
    graph = moe(kind)
    found = expert_parallel(graph, 2, axis="experts", stride=4).program
    seen: Counter[tuple[str, str]] = Counter()
    for block, op, count in exchanges(found):
        seen[op.phase, op.attr("role")] += count
        assert op.phase == block.phase
        assert dict(work(op).dims)["nbytes"] == ROWS * 32 * 2  # rows * hidden * bf16
        assert dict(op.attrs) == {"axis": "experts", "ranks": 2, "stride": 4, "role": op.attr("role")}
        assert op.inputs[0].slot != op.outputs[0].slot
        assert block.storages[op.outputs[0].slot].nbytes == ROWS * 32 * 2
    n = layers(graph)
    assert n == 2
    assert seen == {(phase, role): n for phase in ("forward", "backward") for role in ("dispatch", "combine")}


def test_what_meets_inside_is_sent_once_and_small(moe: Callable[[str], Graph]) -> None:
    """Biases are added before rows go back; of scores used inside, only a number a row comes back as gradient."""
    biased = expert_parallel(moe("gpt_oss"), 2).program
    seen = Counter(op.phase for _, op, count in exchanges(biased) for _ in range(count))
    assert seen == {"forward": 4, "backward": 4}
    found = expert_parallel(moe("ScoresInside"), 2).program
    shapes = {(op.phase, op.attr("role"), op.inputs[0].shape) for _, op, _ in exchanges(found)}
    assert shapes == {
        ("forward", "dispatch", (ROWS, 32)), ("forward", "dispatch", (ROWS,)), ("forward", "combine", (ROWS, 32)),
        ("backward", "dispatch", (ROWS, 32)), ("backward", "combine", (ROWS, 1)), ("backward", "combine", (ROWS, 32)),
    }  # fmt: skip


@pytest.mark.parametrize("first", [True, False])
def test_a_recompute_exchanges_again(moe: Callable[[str], Graph], first: bool) -> None:
    """Whether forward is made to run again before the split or after it."""
    graph = moe("mixtral")
    if first:
        found = expert_parallel(recompute.apply(graph, "full"), 2).program
    else:
        found = recompute.apply(expert_parallel(graph, 2).program, "full")
    seen = Counter(op.phase for _, op, count in exchanges(found) for _ in range(count))
    assert seen == {"forward": 4, "recompute": 4, "backward": 4}


@pytest.mark.parametrize(("kind", "ranks"), [("mixtral", 2), ("qwen3_moe", 4), ("deepseek_v3", 8), ("gpt_oss", 2)])
def test_each_rank_holds_its_share_of_experts(moe: Callable[[str], Graph], kind: str, ranks: int) -> None:
    graph = moe(kind)
    found = expert_parallel(graph, ranks)
    before = {p.names[0]: p.shape for p in graph.facts.parameters}
    after = {p.names[0]: p.shape for p in found.program.facts.parameters}
    mine = {name for name in before if ".experts." in name}
    assert found.parameters == mine
    assert len(mine) == layers(graph) * (4 if kind == "gpt_oss" else 2)
    for name, shape in before.items():
        assert after[name] == ((shape[0] // ranks, *shape[1:]) if name in mine else shape)
    shrunk: Counter[str] = Counter()
    for was, now in zip(graph.blocks, found.program.blocks, strict=True):
        for a, b in zip(was.storages, now.storages, strict=False):
            if a.kind in ("param", "grad"):
                own = ".experts." in (a.name or "")
                assert b.nbytes == (cast("int", a.nbytes) // ranks if own else a.nbytes)
                shrunk[a.kind] += own
    assert min(shrunk["param"], shrunk["grad"]) >= 2


@pytest.mark.parametrize("kind", EXPERTS)
def test_flops_of_the_mean_rank_are_those_of_its_own_tokens(moe: Callable[[str], Graph], kind: str) -> None:
    """Each rank brings tokens of its own: the sum over ranks is `ranks` models' worth, with experts held once."""
    graph, ranks = moe(kind), 4
    local = products(expert_parallel(graph, ranks, imbalance=2.0).program)
    assert len(local) == 6
    for whole, part in zip(products(graph), local, strict=True):
        assert work(part).flops == work(whole).flops > 0
        assert dict(work(whole).dims)["groups"] == ranks * dict(work(part).dims)["groups"] == EXPERTS[kind]


def test_what_backward_keeps_are_the_rows_that_arrived(moe: Callable[[str], Graph]) -> None:
    graph = moe("mixtral")
    found = expert_parallel(graph, 2).program

    def kept(program: Graph) -> int:
        works = [[work(op) for op in block.ops] for block in program.blocks]
        return sum(life.nbytes for life in saved(program, works).values())

    assert kept(found) == kept(graph)
    works = [[work(op) for op in block.ops] for block in found.blocks]
    known = lives(found, works)
    read_by_dw = set()
    for segment in found.segments:
        block = found.blocks[segment.block]
        for op in block.ops:
            if op.name == "torchperf.all_to_all" and block.phase == "forward":
                sent, arrived = (segment.storages[v[0].slot] for v in (op.inputs, op.outputs))
                assert found.blocks[found.segments[known[sent].death[0]].block].phase == "forward"
                assert found.blocks[found.segments[known[arrived].death[0]].block].phase == "backward"
                read_by_dw.add(arrived)
    assert len(read_by_dw) == 4  # two layers: rows for dW, and what came back for the router's gradient


def test_the_most_loaded_rank_holds_more_rows(moe: Callable[[str], Graph]) -> None:
    graph = moe("mixtral")
    even, uneven = expert_parallel(graph, 2).program, expert_parallel(graph, 2, imbalance=1.3).program
    larger = 0
    for a, b in zip(even.blocks, uneven.blocks, strict=True):
        inside = {v.slot for op in b.ops if op.attr("load") and op.attr("role") != "combine" for v in op.outputs}
        made = {v.slot for op in b.ops for v in op.outputs}
        for slot, (was, now) in enumerate(zip(a.storages, b.storages, strict=True)):
            if was.nbytes != now.nbytes:
                assert now.nbytes == -(-cast("int", was.nbytes) * 13 // 10)
                larger += slot in made
            if slot in inside and was.kind == "activation":
                assert now.nbytes > was.nbytes  # type: ignore[operator]
    assert larger == 5 + 7  # dispatched, gate_up, silu, product, down; dispatched, dX, 4 of the activation, dX
    assert {op.attr("load") for _, op, _ in exchanges(uneven)} == {op.attr("load") for op in products(uneven)} == {1.3}
    assert not any(op.attr("load") for op, _ in even.ops())
    assert not any(op.attr("load") for op, _ in uneven.ops() if "mlp" not in op.module or "gate" in op.module)


@pytest.mark.parametrize("kind", ["mixtral", "qwen3_moe"])
@pytest.mark.parametrize("sequence", [False, True])
def test_after_tensor_parallelism_each_expert_is_split_too(
    tiny: Callable[..., Any], megatron: Callable[..., Any], kind: str, sequence: bool
) -> None:
    placement = megatron(tiny(kind), 2, sequence=sequence)
    local = local_program(placement)
    found = expert_parallel(local, 4)
    whole = {p.names[0]: p.shape for p in placement.prepared.factors.graph.facts.parameters}
    shapes = {p.names[0]: p.shape for p in found.program.facts.parameters}
    experts, ffn, hidden = whole["model.layers.0.mlp.experts.gate_up_proj"]
    assert shapes["model.layers.0.mlp.experts.gate_up_proj"] == (experts // 4, ffn // 2, hidden)
    assert shapes["model.layers.0.mlp.experts.down_proj"] == (experts // 4, hidden, ffn // 4)
    seen = Counter((op.phase, op.attr("role")) for _, op, count in exchanges(found.program) for _ in range(count))
    assert seen == {(p, role): 2 for p in ("forward", "backward") for role in ("dispatch", "combine")}

    def others(graph: Graph) -> list[Any]:
        return [(op.name, op.inputs[0].shape, n) for op, n in graph.ops() if op.attr("axis") == "tp"]

    assert others(found.program) == others(local) != []
    for before, after in zip(products(local), products(found.program), strict=True):
        assert work(after).flops == work(before).flops


def test_ranks_that_do_not_divide_the_experts(moe: Callable[[str], Graph]) -> None:
    with pytest.raises(TorchperfError) as caught:
        expert_parallel(moe("deepseek_v3"), 3)
    assert caught.value.message.startswith("3 ranks do not divide the 8 experts of `model.layers.*.mlp.experts.")
    assert ("nearest", "2 or 4") in caught.value.facts
    assert any(label == "dim" and value.startswith("0:") for label, value in caught.value.facts)


def test_a_model_without_experts(tiny: Callable[..., Any]) -> None:
    with pytest.raises(TorchperfError, match="no experts"):
        expert_parallel(tiny("llama").factors.graph, 2)


def test_one_rank_leaves_everything_as_it_is(moe: Callable[[str], Graph]) -> None:
    graph = moe("mixtral")
    assert expert_parallel(graph, 1, imbalance=2.0) == ExpertParallel(graph, frozenset())


@pytest.mark.parametrize(("ranks", "imbalance"), [(0, 1.0), (2, 0.9), (2, float("nan"))])
def test_degrees_that_mean_nothing(moe: Callable[[str], Graph], ranks: int, imbalance: float) -> None:
    with pytest.raises(TorchperfError, match="at least"):
        expert_parallel(moe("mixtral"), ranks, imbalance=imbalance)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [("aten._grouped_mm.default", "transformers.grouped_mm_fallback.default", "rows sorted by expert"),
     ("aten.silu.default", "mine.act.default", "no factor rule for `act`")],
)  # fmt: skip
def test_experts_in_a_form_that_cannot_be_split(moe: Callable[[str], Graph], old: str, new: str, says: str) -> None:
    graph = moe("mixtral")
    blocks = tuple(
        replace(block, ops=tuple(replace(op, name=new) if op.name == old else op for op in block.ops))
        for block in graph.blocks
    )
    with pytest.raises(TorchperfError, match=says) as caught:
        expert_parallel(replace(graph, blocks=blocks), 2)
    where = dict(caught.value.facts)["op"]
    assert new in where
    assert "model.layers.*.mlp.experts" in where


def test_a_table_by_an_index_that_nobody_knows_is_not_sent(moe: Callable[[str], Graph]) -> None:
    """Biases looked up by something else than what the ends of rows are counted from."""
    graph = moe("gpt_oss")
    blocks = []
    for block in graph.blocks:
        named = {v.slot: op.inputs[0] for op in block.ops if op.name == "aten.histc.default" for v in op.inputs}
        ops = tuple(
            replace(op, name="aten.relu.default") if op.outputs and op.outputs[0].slot in named else op
            for op in block.ops
        )
        blocks.append(replace(block, ops=ops))
    with pytest.raises(TorchperfError, match="belongs to experts"):
        expert_parallel(replace(graph, blocks=tuple(blocks)), 2)
