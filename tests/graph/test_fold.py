"""Folding of like layers: what passes make of the folded program, unfolded, is what they make of the whole one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import torchperf.local_program as rooms
from torchperf import hardware
from torchperf.graph.fold import KEPT, Folded, fold
from torchperf.graph.graph import Capture, Graph
from torchperf.graph.plan import Plan

LAYERS = 12  # of gpt2
FOUND = [
    ("gpt2", "train", 1),
    ("gpt2", "forward", 1),
    ("mixtral-8x7b", "train", 1),
    ("t5-base", "train", 2),  # an encoder and a decoder
]


def numbered(graph: Graph) -> list[tuple[int, str, tuple[int, ...]]]:
    """The segments, storages by the order of their first use: alike for programs that differ in names alone."""
    names: dict[int, int] = {}
    return [(s.block, s.module, tuple(names.setdefault(i, len(names)) for i in s.storages)) for s in graph.segments]


@pytest.fixture(params=FOUND, ids=lambda case: f"{case[0]}-{case[1]}")
def graph(request: pytest.FixtureRequest, captured: Callable[..., Capture]) -> tuple[Graph, int]:
    model, mode, stretches = request.param
    return captured(model, mode=mode).bind(), stretches


def test_back_is_the_whole(graph: tuple[Graph, int]) -> None:
    whole, stretches = graph
    folded = fold(whole)
    assert len(folded.stretches) == stretches
    assert folded.unfold(folded.graph) == whole


def test_two_of_each_stretch_stay(captured: Callable[..., Capture]) -> None:
    whole = captured("gpt2").bind()
    folded = fold(whole)
    (stretch,) = folded.stretches
    kept = {s.module for s in folded.graph.segments if s.module}
    assert len(kept) == LAYERS - len(stretch.layers) + KEPT
    assert folded.graph.blocks == whole.blocks


def test_no_layer_of_another_kind_is_dropped(captured: Callable[..., Capture]) -> None:
    """Windows and full attention take turns in gpt-oss: two neighbours are never alike."""
    whole = captured("gpt-oss-20b").bind()
    assert not fold(whole).stretches
    assert fold(whole).graph == whole


@pytest.mark.parametrize("recompute", ["none", "selective", "selective-ops", "full", "modules:layernorm"])
@pytest.mark.parametrize("runtime", ["eager", "fsdp-compile", "megatron-core"])
@pytest.mark.parametrize("model", ["gpt2", "mixtral-8x7b"])
def test_passes_make_the_same(
    model: str, runtime: str, recompute: str, captured: Callable[..., Capture], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = captured(model).bind()
    plan = Plan(tp=2, sequence_parallel=True, recompute=recompute, global_batch=2, micro_batch=1).resolved()

    def made() -> Graph:
        loaded = hardware.load_runtime(runtime)
        return rooms.local_program(lambda _: whole, None, plan, rooms.How(), loaded, "sm90").graph

    folded = made()
    monkeypatch.setattr(rooms, "fold", lambda graph: Folded(graph, graph, ()))
    plain = made()
    assert folded.blocks == plain.blocks
    assert numbered(folded) == numbered(plain)


def test_new_storages_are_each_layer_s_own(captured: Callable[..., Capture]) -> None:
    whole = captured("gpt2").bind()
    plan = Plan(recompute="full", global_batch=2, micro_batch=1).resolved()
    made = rooms.local_program(lambda _: whole, None, plan, rooms.How(), hardware.load_runtime("eager")).graph
    users: dict[int, set[str]] = {}
    for segment in made.segments:
        for storage in segment.storages:
            users.setdefault(storage, set()).add(segment.module)
    new = [modules for storage, modules in users.items() if storage >= whole.num_storages]
    assert new
    assert all(len(modules) == 1 for modules in new)
