"""Numbers, not only counts: every op on every rank's own part equals the slice of the truth."""

from __future__ import annotations

import random
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from torchperf.partition.choose import candidates, sequence_leaves
from torchperf.partition.local import local_program
from torchperf.partition.masks import Split
from torchperf.partition.placement import place
from torchperf.partition.prepare import prepare
from torchperf.partition.step import LINEAR

PLANS = [
    *((kind, 2, False, False) for kind in ("llama", "gpt2", "bert", "mixtral", "qwen3_moe", "phi3", "gpt_neox",
                                          "gemma3_text", "t5", "vit", "deepseek_v3")),
    *((kind, 4, False, False) for kind in ("llama", "gpt2", "phi3", "gemma3_text")),
    *((kind, 2, True, False) for kind in ("llama", "gpt2", "bert", "mixtral", "phi3", "gemma3_text", "t5",
                                         "deepseek_v3")),
    *((kind, 2, False, True) for kind in ("mixtral", "qwen3_moe", "deepseek_v3")),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "ranks", "sequence", "experts"), PLANS)
def test_every_op_on_every_rank_is_a_slice_of_the_truth(
    tiny: Callable[..., Any], megatron: Callable[..., Any], lockstep: ModuleType,
    kind: str, ranks: int, sequence: bool, experts: bool,
) -> None:  # fmt: skip
    placement = megatron(tiny(kind), ranks, sequence=sequence, experts=experts)
    assert not placement.conflicts
    report = lockstep.Lockstep(placement).run()
    assert not report.wrong
    assert sum(report.checked.values()) > 8 * sum(report.skipped.values())


@pytest.mark.parametrize("kind", ["llama", "gpt2", "bert", "mixtral", "phi3", "vit", "gemma3_text", "deepseek_v3"])
def test_any_legal_plan_is_exact(tiny: Callable[..., Any], lockstep: ModuleType, kind: str) -> None:
    """Leaves drawn at random, batch, hidden and head_dim among them: a conflict, or every op right."""
    prepared = tiny(kind)
    factors = prepared.factors
    draw = random.Random(kind)
    pool = [c.leaf for c in candidates(factors)] + factors.leaf("batch") + factors.leaf("seq")
    pool = [leaf for leaf in pool if leaf.size % 2 == 0]
    machine = lockstep.interpreter.Machine(factors.graph).run()
    legal = 0
    for _ in range(12):
        leaves = draw.sample(pool, min(len(pool), draw.randint(1, 3)))
        along = sequence_leaves(factors) if kind != "vit" and draw.random() < 0.4 else ()
        if any(leaf is other for leaf in leaves for other in along):
            continue
        placement = place(prepared, Split("tp", (2,), {id(leaf): (leaf, 1) for leaf in leaves}, along))
        if placement.conflicts:
            continue
        legal += 1
        assert not lockstep.Lockstep(placement, machine).run().wrong, [(leaf.name, leaf.size) for leaf in leaves]
        local_program(placement)
    assert legal


def test_the_checker_sees_a_scalar_that_every_rank_adds(
    tiny: Callable[..., Any], megatron: Callable[..., Any], lockstep: ModuleType
) -> None:
    """Trap 3: x + eps is affine. Were it held to be linear, each rank would add eps."""
    factors = tiny("llama", seq=16).factors
    hidden = factors.leaf("hidden")[0]
    for records in factors.blocks:
        for facts in records:
            if facts.op.name == "aten.add.Tensor" and len(facts.op.inputs) == 1 and facts.op.attr("other"):
                facts.linear, facts.through = LINEAR, (0,)
    placement = place(prepare(factors), Split("tp", (2,), {id(hidden): (hidden, 1)}))
    assert any(name == "add" for _, _, name, *_ in lockstep.Lockstep(placement).run().wrong)
