"""What holds under any plan: work and parameters over ranks are the whole, a Partial meets its sum, an illegal plan
says which dim is at fault; and what inference finds on families that bring no plan."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import pytest

from torchperf import TorchperfError
from torchperf.annotate.registry import work
from torchperf.partition.given import given
from torchperf.partition.infer import infer
from torchperf.partition.local import local_program
from torchperf.partition.placement import Placement
from torchperf.partition.state import WHOLE

FAMILIES = ("llama", "gpt2", "bert", "mixtral", "phi3", "vit", "gemma3_text", "deepseek_v3")
DRAWS = 24
COLLECTIVES = ("torchperf.all_reduce", "torchperf.all_gather", "torchperf.reduce_scatter")


def degree(placement: Placement, b: int, i: int) -> int:
    """Over how many ranks placement splits the work of one op."""
    split, facts, placed = placement.split, placement.prepared.factors.blocks[b][i], placement.blocks[b].ops[i]
    if placed is None:
        return 1
    mask = 0
    for dims in (*facts.inputs, *facts.outputs, *facts.contracted):
        mask |= split.mask_of(dims)
    mask &= ~placed.whole
    for state in (*placed.inputs, *placed.outputs):
        mask |= state.ragged | (split.full if state.sequence else 0)
    return split.degree(mask)


def work_over_ranks_is_the_whole(placement: Placement) -> int:
    """Every product and attention: `degree` ranks' work is the op's; returns how many are split."""
    found = 0
    for b, (whole, local) in enumerate(
        zip(placement.prepared.factors.graph.blocks, local_program(placement).blocks, strict=True)
    ):
        parts = [op for op in local.ops if op.name not in COLLECTIVES]
        for i, (op, part) in enumerate(zip(whole.ops, parts, strict=True)):
            before, after = work(op), work(part)
            if before.kind in ("matmul", "attention"):
                n = degree(placement, b, i)
                dims = [dim for value in placement.prepared.factors.blocks[b][i].inputs for dim in value]
                mixed = any(placement.split.mixed(dim) for dim in dims)
                assert after.flops * n == before.flops or (mixed and before.flops <= after.flops * n)
                found += n > 1
    return found


def parameters_over_ranks_are_the_whole(placement: Placement) -> None:
    graph, split = placement.prepared.factors.graph, placement.split
    local = local_program(placement).facts.parameters
    for name, dims in placement.prepared.factors.parameters.items():
        numel = math.prod(split.local(dim) for dim in dims)
        whole = math.prod(factor.size for dim in dims for factor in dim)
        if not any(split.mixed(dim) for dim in dims):
            assert numel * split.degree(split.held(dims)[0]) == whole, name
    assert len(local) == len(graph.facts.parameters)
    assert all(
        all(a <= b for a, b in zip(p.shape, q.shape, strict=True))
        for p, q in zip(local, graph.facts.parameters, strict=True)
    )


def every_partial_meets_a_sum(placement: Placement) -> None:
    """Followed op by op: a sum is done only where one waits, and none waits in a gradient at the end."""
    for b, block in enumerate(placement.prepared.factors.graph.blocks):
        placed = placement.blocks[b]
        waiting = {slot: state.partial for slot, (state, _) in placed.entry.items()}
        for i in range(len(block.ops) + 1):
            for c in placed.collectives:
                if c.op == i and c.kind in ("all_reduce", "reduce_scatter") and c.role != "statistic":
                    assert waiting.get(c.slot, 0) & c.mask == c.mask
                    waiting[c.slot] &= ~c.mask
            if i == len(block.ops) or placed.ops[i] is None:
                continue
            op, states = block.ops[i], placed.ops[i]
            assert states is not None
            if placement.prepared.factors.blocks[b][i].kind != "create":
                for value, state in zip(op.inputs, states.inputs, strict=True):
                    assert waiting.get(value.slot, 0) == state.partial
            if not placement.prepared.views[b][i]:
                for value, state in zip(op.outputs, states.outputs, strict=True):
                    waiting[value.slot] = state.partial
        for slot, storage in enumerate(block.storages):
            assert storage.kind != "grad" or not waiting.get(slot, 0)
        for slot, mask in waiting.items():
            left = placed.exit.get(slot)
            if slot in placement.prepared.escapes[b]:
                assert mask == (left[0] if left else WHOLE).partial


@pytest.mark.parametrize("kind", FAMILIES)
def test_any_plan_keeps_the_laws_or_names_its_fault(tiny: Callable[..., Any], kind: str) -> None:
    """One to three parameters drawn, each with a style, over 2, 3 or 4 ranks, with and without sequence parallelism."""
    prepared = tiny(kind)
    draw = random.Random(kind)
    names = list(prepared.factors.parameters)
    refused: list[TorchperfError] = []
    legal = split = 0
    for _ in range(DRAWS):
        plan = {
            name: draw.choice(("colwise", "rowwise", "packed_colwise"))
            for name in draw.sample(names, draw.randint(1, 3))
        }
        ranks, sequence = draw.choice((2, 2, 3, 4)), kind != "vit" and draw.random() < 0.3
        try:
            found = given(prepared, ranks, plan, sequence=sequence)
        except TorchperfError as error:
            refused.append(error)
            continue
        legal += 1
        assert not found.placement.conflicts
        split += work_over_ranks_is_the_whole(found.placement)
        parameters_over_ranks_are_the_whole(found.placement)
        every_partial_meets_a_sum(found.placement)
    assert legal
    assert split
    assert refused
    for error in refused:
        assert {key for key, _ in error.facts} & {"dim", "dims"}, str(error)
        assert error.hint


def test_families_without_a_plan_are_split(planless: Callable[[str], Any], without_plan: str) -> None:
    """At least 95 % of the products' FLOPs over 2 ranks, and no op that has no rule."""
    prepared = planless(without_plan)
    assert not prepared.factors.unresolved
    found = infer(prepared, 2)
    whole = sum(n * sum(flops) for n, flops in zip(prepared.counts, prepared.flops, strict=True))
    spared = sum(n * b.flops for n, b in zip(prepared.counts, found.placement.blocks, strict=True))
    assert 2 * spared / whole >= 0.95
    assert not found.placement.conflicts
    assert work_over_ranks_is_the_whole(found.placement)


@pytest.mark.parametrize(("layers", "seq", "batch"), [(2, 64, 1), (2, 512, 1), (12, 64, 1)])
def test_a_vocabulary_that_does_not_divide_leaves_the_rest_of_the_plan(
    real: Callable[..., Any], layers: int, seq: int, batch: int
) -> None:
    """50257 rows over 2 and 4 ranks: few layers and tokens are no reason to split `hidden` in place of heads."""
    prepared = real("gpt2", seq=seq, batch=batch, n_layer=layers)
    for ranks in (2, 4):
        found = infer(prepared, ranks)
        assert {c.leaf.name or c.leaf.size for c in found.taken} == {"heads", 3072}
        verdicts = {v.candidate.leaf.name: v.verdict for v in found.verdicts}
        assert verdicts["vocab"] == "indivisible"
        assert verdicts["hidden"] in ("skipped", "shut out")


def test_heads_that_do_not_divide_name_the_degrees_that_do(real: Callable[..., Any]) -> None:
    with pytest.raises(TorchperfError) as caught:
        infer(real("t5-base", num_layers=2, num_decoder_layers=2), 8)
    assert "8 ranks do not divide the 12 heads of `encoder.block." in str(caught.value)
    assert dict(caught.value.facts)["nearest"] == "6 or 12"
