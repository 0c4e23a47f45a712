"""Real numbers: ranks with tokens of their own, rows sent by where they route, against the model without a split."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from torchperf.graph.graph import Graph
from torchperf.partition.expert_parallel import ExpertParallel, expert_parallel
from torchperf.rewrite import recompute


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


lockstep = helper("expert_lockstep")
CASES = [
    *((kind, ranks) for kind in (*EXPERTS, "gpt_oss") for ranks in (2, 4)),
    ("EveryToken", 2), ("EveryToken", 4), ("ScoresInside", 2),
]  # fmt: skip


def run(graph: Graph, found: ExpertParallel, kind: str, ranks: int) -> tuple[Any, Any]:
    whole = lockstep.Whole(graph, ranks)
    rows = 0 if kind == "EveryToken" else ROWS
    return whole, lockstep.Ranks(whole, found, ranks, EXPERTS.get(kind, 4), rows).run()


@pytest.mark.parametrize(("kind", "ranks"), CASES)
def test_ranks_with_tokens_of_their_own_compute_what_the_whole_does(
    moe: Callable[[str], Graph], kind: str, ranks: int
) -> None:
    """Outputs and every other tensor outside as without a split; experts' gradients complete over the ranks."""
    graph = moe(kind)
    found = expert_parallel(graph, ranks, imbalance=1.25)
    whole, side = run(graph, found, kind, ranks)
    assert not side.wrong()
    assert side.compared("grad") == side.compared("param") > 8
    assert side.compared("activation") > 50
    assert set(side.computed) == (set() if kind == "EveryToken" else {ranks * ROWS})
    for i, (what, name) in whole.kinds.items():
        if what == "grad" and name in side.names:
            assert whole.machines[0].storages[i].abs().max() > 0
            assert not torch.equal(whole.machines[0].storages[i], whole.machines[1].storages[i])


def test_numbers_hold_where_forward_runs_again(moe: Callable[[str], Graph]) -> None:
    graph = recompute.apply(moe("mixtral"), "full")
    _, side = run(graph, expert_parallel(graph, 2, imbalance=1.25), "mixtral", 2)
    assert not side.wrong()


def test_the_checker_sees_rows_that_stay_at_home(moe: Callable[[str], Graph]) -> None:
    """dW of the rows that a rank brought, in place of those that arrived."""
    graph = moe("mixtral")
    found = expert_parallel(graph, 2, imbalance=1.25)
    backward = next(b for b, block in enumerate(found.program.blocks) if block.phase == "backward" and block.module)
    block = found.program.blocks[backward]
    last = [op for op in block.ops if op.name == "aten._grouped_mm.default" and len(op.inputs[1].shape) == 2][-1]
    arrived = last.inputs[1].slot
    sent = next(op for op in graph.blocks[backward].ops if op.outputs and op.outputs[0].slot == last.outputs[0].slot)
    wrong = replace(last, inputs=(last.inputs[0], replace(last.inputs[1], slot=sent.inputs[1].slot), last.inputs[2]))
    assert arrived != sent.inputs[1].slot
    ops = tuple(wrong if op is last else op for op in block.ops)
    blocks = tuple(replace(x, ops=ops) if x is block else x for x in found.program.blocks)
    bad = replace(found, program=replace(found.program, blocks=blocks))
    with pytest.raises(AssertionError, match="rows of the other side"):
        run(graph, bad, "mixtral", 2)


def test_the_checker_sees_experts_on_the_wrong_rank(moe: Callable[[str], Graph]) -> None:
    graph = moe("mixtral")
    found = expert_parallel(graph, 2, imbalance=1.25)
    side = lockstep.Ranks(lockstep.Whole(graph, 2), found, 2, 4, ROWS)
    first, second = side.storages
    moved = [i for i, (what, name) in side.whole.kinds.items() if what == "param" and name in side.names]
    assert len(moved) == 4
    for i in moved:
        first[i], second[i] = second[i], first[i]
    assert len(side.run().wrong()) > 20
