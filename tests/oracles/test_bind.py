"""A graph with free sizes, bound, is the graph that a capture at those sizes records: op by op, on every family."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from torchperf.frontend.capture import capture
from torchperf.frontend.subject import Subject
from torchperf.graph.expr import bind_dim
from torchperf.graph.graph import Graph
from torchperf.graph.tensor import Value

# (batch, seq): on both sides of the windows (50) and the chunk (32), a multiple of it, S equal to the hidden size
SIZES = ((1, 64), (1, 200), (6, 20), (6, 200))


def unfolded(graph: Graph) -> Iterator[tuple[Any, ...]]:
    """Every op as it ran: names, arguments, and each tensor with its place in a storage of the whole program.

    Storages are numbered in the order of their first use, so that equal rows mean equal sharing.
    """
    numbers: dict[int, int] = {}
    for segment in graph.segments:
        block = graph.blocks[segment.block]
        parent = segment.module.rpartition(".")[0]

        def here(path: str | None, starred: str = f"{parent}.*", layer: str = segment.module) -> str | None:
            return path.replace(starred, layer, 1) if path and layer and path.startswith(starred) else path

        def tensor(value: Value, block=block, segment=segment, here=here) -> tuple[Any, ...]:
            storage = block.storages[value.slot]
            number = numbers.setdefault(segment.storages[value.slot], len(numbers))
            whole = (number, storage.nbytes, storage.kind, here(storage.name))
            return (value.dtype, value.shape, value.strides, value.offset, whole)

        for op in block.ops:
            inputs, outputs = tuple(map(tensor, op.inputs)), tuple(map(tensor, op.outputs))
            yield (op.name, op.phase, here(op.module), op.operands, inputs, outputs, op.attrs)


def held(graph: Graph) -> set[int]:
    """Storages that the caller holds, by the order of their first use."""
    order = dict.fromkeys(s for segment in graph.segments for s in segment.storages)
    return {list(order).index(storage) for storage in graph.facts.outputs}


def input_shapes(graph: Graph) -> list[tuple[str, tuple[int, ...], str]]:
    sizes = dict(graph.bound or ())
    return [(i.name, tuple(bind_dim(d, sizes) for d in i.shape), i.dtype) for i in graph.facts.inputs]


def assert_same(bound: Graph, fresh: Graph) -> None:
    """Row by row, with the first difference told."""
    ours, theirs = list(unfolded(bound)), list(unfolded(fresh))
    for i, (a, b) in enumerate(zip(ours, theirs, strict=False)):
        assert a == b, f"op {i} of {len(theirs)}"
    assert len(ours) == len(theirs)
    assert held(bound) == held(fresh)
    assert input_shapes(bound) == input_shapes(fresh)


def test_bound_equals_captured(family: Callable[[str], Subject], name: str) -> None:
    """Batch 1 and 6; sequences shorter and longer than every window and chunk."""
    subject = family(name)
    graphs: list[Graph] = []
    for batch, seq in SIZES:
        sizes = {"batch": batch, "seq": seq}
        sizes = {size: sizes[size] for size in subject.sizes}
        found = next((graph for graph in graphs if graph.holds(sizes)), None)
        if found is None:
            found = capture(subject, "train", sizes)
            assert found.facts.fixed == "", found.facts.fixed
            assert found.facts.unattributed == 0
            assert found.facts.guesses == ()
            graphs.append(found)
        fresh = capture(replace(subject, fixed="the oracle"), "train", sizes)
        assert_same(found.bind(**sizes), fresh.bind(**sizes))


def test_bound_equals_captured_forward(family: Callable[[str], Subject], name: str) -> None:
    """Forward alone, in evaluation mode."""
    subject = family(name)
    sizes = {"batch": 6, **({"seq": 60} if "seq" in subject.sizes else {})}
    found = capture(subject, "forward", sizes)
    assert found.facts.fixed == "", found.facts.fixed
    fresh = capture(replace(subject, fixed="the oracle"), "forward", sizes)
    assert_same(found.bind(**sizes), fresh.bind(**sizes))
    assert {op.phase for op, _ in found.ops()} == {"forward"}
