"""The rank's program: local shapes, collectives as ops, and what is kept over ranks."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any, cast

import pytest

from torchperf.annotate.registry import work
from torchperf.partition.infer import infer
from torchperf.partition.local import local_program
from torchperf.schedule.memory import saved

MODELS = [
    ("llama-3.1-8b", {"num_hidden_layers": 3}), ("gpt2-medium", {"seq": 512}),
    ("mixtral-8x7b", {"num_hidden_layers": 3}), ("bert-large", {"num_hidden_layers": 3}), ("nanogpt", {}),
    ("t5-base", {"num_layers": 2, "num_decoder_layers": 2}), ("deepseek-v3", {"num_hidden_layers": 4}),
]  # fmt: skip


@pytest.mark.parametrize("sequence", [False, True])
@pytest.mark.parametrize(("model", "changes"), MODELS, ids=[m for m, _ in MODELS])
def test_matmul_flops_over_ranks_are_the_whole(
    real: Callable[..., Any], model: str, changes: dict[str, int], sequence: bool
) -> None:
    """An op that is split does 1/n of the work on each rank, one that is whole does all of it on each."""
    ranks = 4
    placement = infer(real(model, **changes), ranks, sequence=sequence).placement
    graph = placement.prepared.factors.graph
    split = 0
    for b, block in enumerate(local_program(placement).blocks):
        local = [op for op in block.ops if not op.name.startswith("torchperf.") or "attention" in op.name]
        for whole, part in zip(graph.blocks[b].ops, local, strict=True):
            if work(whole).kind in ("matmul", "attention"):
                n = round(work(whole).flops / work(part).flops)
                assert n in (1, ranks)
                assert work(part).flops * n == work(whole).flops
                split += n == ranks
    assert split


@pytest.mark.parametrize(
    ("kind", "ranks", "sequence"),
    [("llama", 2, False), ("llama", 2, True), ("llama", 4, False), ("gpt2", 2, True), ("phi3", 4, False),
     ("bert", 2, True), ("t5", 2, False), ("mixtral", 2, True), ("deepseek_v3", 2, False)],
)  # fmt: skip
def test_local_shapes_are_those_of_the_slices(
    tiny: Callable[..., Any], megatron: Callable[..., Any], lockstep: ModuleType, kind: str, ranks: int, sequence: bool
) -> None:
    placement = megatron(tiny(kind), ranks, sequence=sequence)
    checker = lockstep.Lockstep.__new__(lockstep.Lockstep)
    checker.split = placement.split
    names = {"torchperf.all_reduce", "torchperf.all_gather", "torchperf.reduce_scatter"}
    for b, block in enumerate(local_program(placement).blocks):
        records, placed = placement.prepared.factors.blocks[b], placement.blocks[b].ops
        for facts, states, op in zip(records, placed, [op for op in block.ops if op.name not in names], strict=True):
            for j, (value, dims) in enumerate(zip(op.outputs, facts.outputs, strict=True)):
                along = states.outputs[j].sequence if states else False
                assert value.shape == tuple(len(checker.own(dim, 0, 0, along)) for dim in dims)


def test_parameters_gradients_and_activations_shrink(real: Callable[..., Any]) -> None:
    placement = infer(real("llama-3.1-8b", num_hidden_layers=3), 8).placement
    whole, local = placement.prepared.factors.graph, local_program(placement)
    assert local.num_storages == whole.num_storages + sum(
        c.count for c in placement.collectives if c.role == "statistic"
    )
    for before, after in zip(whole.blocks, local.blocks, strict=True):
        for was, now in zip(before.storages, after.storages, strict=False):
            if was.kind in ("param", "grad"):
                assert now.nbytes == (was.nbytes if "norm" in (was.name or "") else cast("int", was.nbytes) // 8)
    shapes = {p.names[0]: p.shape for p in local.facts.parameters}
    assert shapes["model.layers.2.self_attn.k_proj.weight"] == (128, 4096)
    assert shapes["lm_head.weight"] == (128256 // 8, 4096)


def test_sequence_parallelism_saves_a_slice_and_gathers_apart(real: Callable[..., Any]) -> None:
    placement = infer(real("llama-3.1-8b", num_hidden_layers=3), 8, sequence=True).placement
    layer = next(b for b in local_program(placement).blocks if b.module and b.phase == "forward")
    gather = next(op for op in layer.ops if op.name == "torchperf.all_gather")
    assert 8 * gather.inputs[0].nbytes == gather.outputs[0].nbytes == layer.storages[gather.outputs[0].slot].nbytes
    assert layer.storages[gather.inputs[0].slot].nbytes == gather.outputs[0].nbytes // 8
    scatter = next(op for op in layer.ops if op.name == "torchperf.reduce_scatter")
    assert scatter.inputs[0].nbytes == 8 * scatter.outputs[0].nbytes
    assert scatter.inputs[0].slot != scatter.outputs[0].slot
    assert dict(scatter.attrs) == {"axis": "tp", "ranks": 8, "role": "activation"}
    reader = next(op for op in layer.ops if op.name == "aten.mm.default")
    assert reader.inputs[0].slot == gather.outputs[0].slot


def test_views_of_a_local_storage_stay_inside_it(real: Callable[..., Any]) -> None:
    from torchperf.graph.dtype import nbytes

    placement = infer(real("gpt2-medium", seq=512), 8).placement
    for block in local_program(placement).blocks:
        for value in block.values():
            shape, strides, offset = (cast("tuple[int, ...]", x) for x in (value.shape, value.strides, (value.offset,)))
            if value.numel:
                last = offset[0] + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
                assert nbytes(last + 1, value.dtype) <= cast("int", block.storages[value.slot].nbytes)


def test_sequence_parallelism_leaves_an_eighth_of_what_is_saved(real: Callable[..., Any]) -> None:
    """Nothing that backward reads stays whole but the norms' statistics of a row and the rotary tables."""
    placement = infer(real("llama-3.1-8b", num_hidden_layers=3), 8, sequence=True).placement

    def kept(graph: Any) -> int:
        works = [[work(op) for op in block.ops] for block in graph.blocks]
        return sum(life.nbytes for life in saved(graph, works).values())

    whole, local = kept(placement.prepared.factors.graph), kept(local_program(placement))
    assert whole / 8 <= local < 1.01 * whole / 8
