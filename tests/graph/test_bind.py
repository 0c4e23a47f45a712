"""Binding a graph to sizes: what comes out, and which sizes are refused."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchperf.graph.dtype import nbytes
from torchperf.graph.errors import TorchperfError
from torchperf.graph.expr import Expr, Ratio, Scaled, bind_dim
from torchperf.graph.graph import Capture, Facts, Graph, OutOfRange


def numbers(graph: Graph) -> Iterator[object]:
    def unfolded(attr: object) -> Iterator[object]:
        if isinstance(attr, tuple):
            for item in attr:
                yield from unfolded(item)
        else:
            yield attr

    for block in graph.blocks:
        yield from (storage.nbytes for storage in block.storages)
        for value in block.values():
            yield from (*value.shape, *value.strides, value.offset)
        for op in block.ops:
            for _, attr in op.attrs:
                yield from unfolded(attr)


def test_no_expression_is_left(capture: Capture) -> None:
    bound = capture.bind()
    assert bound.bound == tuple(sorted(capture.facts.sizes))
    assert not [number for number in numbers(bound) if isinstance(number, (Expr, Ratio, Scaled))]
    assert bound.facts is capture.find(dict(capture.facts.sizes)).facts  # type: ignore[union-attr]


def test_sizes_not_named_take_their_defaults(small: Capture) -> None:
    assert small.bind(seq=32).bound == (("batch", 1), ("seq", 32))
    assert small.bind(seq=32).size("batch") == 1
    assert small.bind(seq=32).size("kv") is None


def test_every_view_lies_inside_its_storage(capture: Capture) -> None:
    for block in capture.bind().blocks:
        for value in block.values():
            if 0 not in value.shape:
                reach = sum(
                    (bind_dim(d, {}) - 1) * bind_dim(s, {}) for d, s in zip(value.shape, value.strides, strict=True)
                )
                last = bind_dim(value.offset, {}) + reach + 1
                assert nbytes(last, value.dtype) <= bind_dim(block.storages[value.slot].nbytes, {})


def test_calls_name_a_storage_for_every_slot(capture: Capture) -> None:
    for graph in capture.graphs:
        for segment in graph.segments:
            assert len(segment.storages) == len(graph.blocks[segment.block].storages)
        assert graph.num_ops == sum(count for _, count in graph.ops())
        assert graph.num_storages > max(graph.facts.outputs)


def test_a_missing_size(small: Capture) -> None:
    with pytest.raises(TorchperfError, match="the sizes given are not the graph's") as caught:
        small.graphs[0].bind(batch=1)
    assert caught.value.facts == (("graph has", "batch, seq"), ("given", "batch"))


def test_a_size_that_the_graph_has_not(small: Capture) -> None:
    with pytest.raises(TorchperfError, match="the sizes given are not the graph's"):
        small.bind(kv=16)


@pytest.mark.parametrize("size", [0, -1, -4096])
def test_a_size_that_is_not_positive(small: Capture, size: int) -> None:
    with pytest.raises(TorchperfError, match=f"`seq` is {size}: it must be at least 1"):
        small.bind(seq=size)


@pytest.mark.parametrize("sizes", [{"seq": 513}, {"batch": 1, "seq": 1}])
def test_a_size_out_of_range(small: Capture, sizes: dict[str, int]) -> None:
    with pytest.raises(OutOfRange, match=r"`seq` = \d+ lies outside what was captured") as caught:
        small.bind(**sizes)
    assert caught.value.facts == (("captured", "seq from 2 to 512"),)


@given(
    size=st.integers(1, 300), low=st.integers(1, 300), span=st.integers(-1, 300),
    step=st.sampled_from([0, 7, -7, 1]),
)  # fmt: skip
def test_holds_and_bind_agree(size: int, low: int, span: int, step: int) -> None:
    high = -1 if span < 0 else low + span
    graph = Graph(Facts("m", "M", "train", ranges=(("seq", low, high, step),)), (), ())
    inside = low <= size and (high == -1 or size <= high) and (step == 0 or (size % 7 == 0) == (step > 0) or step == 1)
    assert graph.holds({"seq": size}) == inside
    assert not graph.holds({})
    assert not graph.holds({"batch": size})
    if inside:
        assert graph.bind(seq=size).bound == (("seq", size),)
    else:
        with pytest.raises(OutOfRange):
            graph.bind(seq=size)
