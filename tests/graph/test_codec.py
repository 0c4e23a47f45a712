"""Saved graphs: what is written reads back, and a damaged file ends in one message."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from torchperf.graph.codec import VERSION, decode, encode
from torchperf.graph.errors import TorchperfError
from torchperf.graph.expr import Expr, Ratio, Scaled, Term
from torchperf.graph.graph import Block, Capture, Facts, Graph, Segment
from torchperf.graph.op import Op
from torchperf.graph.tensor import Storage, Value

thorough = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
scalars = st.one_of(
    st.none(), st.booleans(), st.integers(-(1 << 70), 1 << 70), st.floats(), st.sampled_from(["", "seq"])
)
junk_values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["expr", "ratio", "float"]), inner, max_size=2),
    ),
    max_leaves=4,
)
SEQ = Expr((Term(1, 1, (("", "seq", 0),)),))


def one_op(**attrs: Any) -> Capture:
    value = Value(0, "bf16", (SEQ, 4), (4, 1), 0)
    op = Op("aten.relu.default", "forward", "act", ("self",), (value,), (value,), tuple(attrs.items()))
    block = Block("", "forward", (Storage(8, "input", "x"),), (op,))
    facts = Facts("m", "M", "forward", sizes=(("seq", 8),), ranges=(("seq", 2, -1, 0),))
    return Capture((Graph(facts, (block,), (Segment(0, "", (0,)),)),))


def test_round_trip(capture: Capture) -> None:
    files = {"model.py": "0" * 64}
    assert decode(encode(capture, files)) == (capture, files)


def test_equal_captures_are_equal_bytes(small: Capture) -> None:
    assert encode(decode(encode(small))[0]) == encode(small)


def test_values_stay_shared(stack: Capture) -> None:
    again = decode(encode(stack))[0]
    for graph, twin in zip(stack.graphs, again.graphs, strict=True):
        for block, other in zip(graph.blocks, twin.blocks, strict=True):
            assert len(list(block.values())) == len(list(other.values()))


@pytest.mark.parametrize(
    "attr",
    [True, False, None, 0, -1, 1 << 62, 0.0, 1e-300, float("inf"), float("-inf"), "", 'a "b"\n', (), (1, (2.5, None)),
     SEQ, (SEQ, 1), Ratio(2.0, SEQ), Scaled(0.5, SEQ), "seq", "inf"],
)  # fmt: skip
def test_arguments_of_every_kind(attr: Any) -> None:
    capture = one_op(value=attr)
    found = decode(encode(capture))[0]
    assert found == capture
    assert type(found.graphs[0].blocks[0].ops[0].attr("value")) is type(attr)


def test_a_bound_graph_is_not_saved(small: Capture) -> None:
    with pytest.raises(TorchperfError, match="a bound graph is not saved"):
        encode(Capture((small.bind(),)))


def _of(change: dict[str, Any], capture: Capture) -> bytes:
    return json.dumps({**json.loads(encode(capture)), **change, "new": 1}).encode()


def test_a_newer_version_is_refused(small: Capture) -> None:
    with pytest.raises(TorchperfError, match=r"`saved\.json` is of a newer version") as caught:
        decode(_of({"version": VERSION + 1}, small), "saved.json")
    assert caught.value.facts == (("file", f"version {VERSION + 1}"), ("this torchperf", f"version {VERSION}"))
    assert "upgrade torchperf" in str(caught.value.hint)


def test_an_older_version_says_to_capture_again(small: Capture) -> None:
    with pytest.raises(TorchperfError, match=r"`saved\.json` is of an older version") as caught:
        decode(_of({"version": VERSION - 1}, small), "saved.json")
    assert caught.value.facts == (("file", f"version {VERSION - 1}"), ("this torchperf", f"version {VERSION}"))
    assert caught.value.hint == "capture the model again with `torchperf capture MODEL -o FILE`"


def test_another_format(small: Capture) -> None:
    with pytest.raises(TorchperfError, match=r"`saved\.json` is not a whole graph"):
        decode(_of({"format": "other"}, small), "saved.json")


def _wrong_block(graph: dict[str, Any]) -> None:
    graph["segments"][0][0] = 10**6


def _negative_block(graph: dict[str, Any]) -> None:
    graph["segments"][0][0] = -1


def _negative_storage(graph: dict[str, Any]) -> None:
    graph["segments"][0][2][0] = -1


def _short_segment(graph: dict[str, Any]) -> None:
    graph["segments"][0][2].pop()


def _wrong_slot(graph: dict[str, Any]) -> None:
    graph["blocks"][0]["values"][0][0] = 10**6


def _negative_slot(graph: dict[str, Any]) -> None:
    graph["blocks"][0]["values"][0][0] = -1


def _wrong_input(graph: dict[str, Any]) -> None:
    graph["blocks"][0]["ops"][0][4] = [10**6 for _ in graph["blocks"][0]["ops"][0][4]]


def _wrong_output(graph: dict[str, Any]) -> None:
    graph["blocks"][0]["ops"][0][5] = [10**6]


def _negative_output(graph: dict[str, Any]) -> None:
    graph["blocks"][0]["ops"][0][5] = [-1]


def _other_operands(graph: dict[str, Any]) -> None:
    graph["blocks"][0]["ops"][0][3].append("more")


def _no_strides(graph: dict[str, Any]) -> None:
    graph["blocks"][0]["values"][0][3] = []


def _code(graph: dict[str, Any]) -> None:
    graph["blocks"][0]["values"][0][4] = "__import__('os').getpid()"


def _unknown_argument(graph: dict[str, Any]) -> None:
    graph["blocks"][0]["ops"][0][6] = {"x": {"code": "1"}}


def _text_for_facts(graph: dict[str, Any]) -> None:
    graph["facts"]["parameters"] = "none"


@pytest.mark.parametrize(
    "damage",
    [_wrong_block, _negative_block, _negative_storage, _short_segment, _wrong_slot, _negative_slot, _wrong_input,
     _wrong_output, _negative_output, _other_operands, _no_strides, _code, _unknown_argument, _text_for_facts],
)  # fmt: skip
def test_what_points_nowhere_is_refused(small: Capture, damage: Callable[[dict[str, Any]], None]) -> None:
    wire = json.loads(encode(small))
    damage(wire["graphs"][0])
    with pytest.raises(TorchperfError, match=r"`saved\.json` is not a whole graph"):
        decode(json.dumps(wire).encode(), "saved.json")


@pytest.mark.parametrize("data", [b"", b"null", b"{}", b"[]", b"\xff\xfe", b"[" * 100_000, b'{"format": 1}'])
def test_no_graph_at_all(data: bytes) -> None:
    with pytest.raises(TorchperfError, match="not a whole graph"):
        decode(data)


def test_a_file_without_graphs(small: Capture) -> None:
    with pytest.raises(TorchperfError, match="not a whole graph"):
        decode(encode(replace(small, graphs=())))


@pytest.fixture(scope="module")
def saved(small: Capture) -> bytes:
    return encode(small)


@thorough
@given(st.data())
def test_damaged_bytes(saved: bytes, data: st.DataObject) -> None:
    good = bytearray(saved)
    for _ in range(data.draw(st.integers(1, 4))):
        good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(TorchperfError):
        decode(bytes(good))


@thorough
@given(st.data())
def test_truncated_bytes(saved: bytes, data: st.DataObject) -> None:
    with pytest.raises(TorchperfError):
        decode(saved[: data.draw(st.integers(0, len(saved) - 1))])


@thorough
@given(st.data())
def test_other_json_in_some_place(data: st.DataObject) -> None:
    """Any part of a small file replaced by any JSON is refused or read, never more."""
    wire = json.loads(encode(one_op(dim=SEQ, scale=Ratio(1.0, SEQ))))
    junk = data.draw(junk_values)
    node: Any = wire
    while True:
        keys = list(node) if isinstance(node, dict) else list(range(len(node)))
        key = data.draw(st.sampled_from(keys))
        if not isinstance(node[key], (dict, list)) or not node[key] or data.draw(st.booleans()):
            node[key] = junk
            break
        node = node[key]
    with contextlib.suppress(TorchperfError):
        decode(json.dumps(wire).encode())
