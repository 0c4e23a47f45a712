"""Capture <-> JSON bytes. No I/O, and nothing in such a file can run code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec

from .check import MAX_BYTES, check
from .errors import TorchperfError
from .expr import Dim, Expr, Ratio, Scaled, parse
from .graph import Block, Capture, Facts, Graph, Input, Segment
from .op import Attr, Op
from .tensor import Storage, Value

FORMAT = "torchperf-graph"
VERSION = 1

_UNREADABLE = (
    msgspec.DecodeError, TorchperfError, ValueError, TypeError, LookupError, ArithmeticError, RecursionError,
)  # fmt: skip

WireDim = int | str


class _Value(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    slot: int
    dtype: str
    shape: list[WireDim]
    strides: list[WireDim]
    offset: WireDim


class _Op(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    name: str
    phase: str
    module: str
    operands: list[str]
    inputs: list[int]
    outputs: list[int]
    attrs: dict[str, Any]


class _Storage(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    nbytes: WireDim
    kind: str
    name: str | None


class _Input(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    name: str
    shape: list[WireDim]
    dtype: str


class _Block(msgspec.Struct, forbid_unknown_fields=True):
    module: str
    phase: str
    storages: list[_Storage]
    values: list[_Value]
    ops: list[_Op]


class _Segment(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    block: int
    module: str
    storages: list[int]


class _Graph(msgspec.Struct, forbid_unknown_fields=True):
    facts: dict[str, Any]
    blocks: list[_Block]
    segments: list[_Segment]


class _File(msgspec.Struct, forbid_unknown_fields=True):
    format: str
    version: int
    files: dict[str, str]
    graphs: list[_Graph]


class _Head(msgspec.Struct):
    format: str
    version: int


def encode(capture: Capture, files: Mapping[str, str] | None = None) -> bytes:
    """The capture as one JSON document; `files` (path -> SHA-256) are what it was made of, for a cache to check."""
    graphs = []
    for graph in capture.graphs:
        if graph.bound is not None:
            raise TorchperfError("a bound graph is not saved", hint="save what `capture` returned")
        blocks = [_block_out(block) for block in graph.blocks]
        segments = [_Segment(s.block, s.module, list(s.storages)) for s in graph.segments]
        graphs.append(_Graph(_facts_out(graph.facts), blocks, segments))
    return msgspec.json.encode(_File(FORMAT, VERSION, dict(files or {}), graphs))


def decode(data: bytes, origin: str = "graph") -> tuple[Capture, dict[str, str]]:
    """The capture that `encode` wrote and its files; raises TorchperfError, naming `origin`, on anything else."""
    if len(data) > MAX_BYTES:
        raise _corrupt(origin, f"it has {len(data):,} bytes, more than {MAX_BYTES:,}")
    try:
        head = msgspec.json.decode(data, type=_Head)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise _corrupt(origin, str(error)) from None
    if head.format != FORMAT:
        raise _corrupt(origin, f"its format is `{head.format}`, not `{FORMAT}`")
    if head.version != VERSION:
        raise _of_another_version(origin, head.version)
    try:
        wire = msgspec.json.decode(data, type=_File)
        if not wire.graphs:
            raise ValueError("it holds no graph")
        return Capture(tuple(map(_graph_in, wire.graphs))), wire.files
    except _UNREADABLE as error:
        raise _corrupt(origin, str(error)) from None


def _graph_in(wire: _Graph) -> Graph:
    blocks = tuple(_block_in(block) for block in wire.blocks)
    segments = tuple(Segment(s.block, s.module, tuple(s.storages)) for s in wire.segments)
    for segment in segments:
        if not 0 <= segment.block < len(blocks):
            raise ValueError(f"a segment calls block {segment.block}")
        if len(segment.storages) != len(blocks[segment.block].storages) or min(segment.storages, default=0) < 0:
            raise ValueError(f"a segment of block {segment.block} has other storages than the block")
    graph = Graph(_facts_in(wire.facts), blocks, segments)
    check(graph)
    return graph


def _of_another_version(origin: str, version: int) -> TorchperfError:
    newer = version > VERSION
    return TorchperfError(
        f"`{origin}` is of {'a newer' if newer else 'an older'} version of the graph file than this torchperf reads",
        facts=[("file", f"version {version}"), ("this torchperf", f"version {VERSION}")],
        hint="upgrade torchperf (`pip install -U torchperf`), or capture the model again with the one you have"
        if newer
        else "capture the model again with `torchperf capture MODEL -o FILE`",
    )


def _corrupt(origin: str, reason: str) -> TorchperfError:
    return TorchperfError(
        f"`{origin}` is not a whole graph",
        facts=[("reason", reason.splitlines()[0] if reason else "unknown")],
        hint="capture the model again with `torchperf capture MODEL -o FILE`",
    )


def _dim_out(dim: Dim) -> WireDim:
    return dim if isinstance(dim, int) else str(dim)


def _dim_in(dim: WireDim) -> Dim:
    return parse(dim) if isinstance(dim, str) else dim


def _attr_out(attr: Attr) -> Any:
    if isinstance(attr, Expr):
        return {"expr": str(attr)}
    if isinstance(attr, Ratio):
        return {"ratio": [attr.numerator, str(attr.denominator)]}
    if isinstance(attr, Scaled):
        return {"scaled": [attr.factor, str(attr.expr)]}
    if isinstance(attr, tuple):
        return [_attr_out(item) for item in attr]
    if isinstance(attr, float) and attr - attr != 0.0:
        return {"float": repr(attr)}
    return attr


def _attr_in(attr: Any) -> Attr:
    if isinstance(attr, dict):
        ((kind, value),) = attr.items()
        if kind == "expr":
            return parse(value)
        if kind == "float" and value in ("inf", "-inf", "nan"):
            return float(value)
        if kind not in ("ratio", "scaled"):
            raise ValueError(f"unknown argument kind `{kind}`")
        expr = parse(value[1])
        if not isinstance(expr, Expr):
            raise ValueError(f"a {kind} needs an expression")
        return Ratio(float(value[0]), expr) if kind == "ratio" else Scaled(float(value[0]), expr)
    if isinstance(attr, list):
        return tuple(_attr_in(item) for item in attr)
    return attr


def _block_out(block: Block) -> _Block:
    index: dict[int, int] = {}
    values: list[_Value] = []
    for value in block.values():
        index[id(value)] = len(values)
        values.append(
            _Value(
                value.slot,
                value.dtype,
                [_dim_out(d) for d in value.shape],
                [_dim_out(d) for d in value.strides],
                _dim_out(value.offset),
            )
        )
    ops = [
        _Op(
            op.name,
            op.phase,
            op.module,
            list(op.operands),
            [index[id(v)] for v in op.inputs],
            [index[id(v)] for v in op.outputs],
            {key: _attr_out(attr) for key, attr in op.attrs},
        )
        for op in block.ops
    ]
    storages = [_Storage(_dim_out(s.nbytes), s.kind, s.name) for s in block.storages]
    return _Block(block.module, block.phase, storages, values, ops)


def _block_in(wire: _Block) -> Block:
    storages = tuple(Storage(_dim_in(s.nbytes), s.kind, s.name) for s in wire.storages)
    values = []
    for v in wire.values:
        if not 0 <= v.slot < len(storages):
            raise ValueError(f"a value lies in slot {v.slot} of {len(storages)}")
        shape, strides = tuple(map(_dim_in, v.shape)), tuple(map(_dim_in, v.strides))
        if len(shape) != len(strides):
            raise ValueError("a value has other strides than dims")
        values.append(Value(v.slot, v.dtype, shape, strides, _dim_in(v.offset)))
    ops = []
    for o in wire.ops:
        if len(o.operands) != len(o.inputs) or min(*o.inputs, *o.outputs, 0, 0) < 0:
            raise ValueError(f"op `{o.name}` has other operands than inputs")
        ops.append(
            Op(
                o.name,
                o.phase,
                o.module,
                tuple(o.operands),
                tuple(values[i] for i in o.inputs),
                tuple(values[i] for i in o.outputs),
                tuple((key, _attr_in(attr)) for key, attr in o.attrs.items()),
            )
        )
    return Block(wire.module, wire.phase, storages, tuple(ops))


def _facts_out(facts: Facts) -> dict[str, Any]:
    out: dict[str, Any] = msgspec.to_builtins(facts)
    out["inputs"] = [[i.name, [_dim_out(d) for d in i.shape], i.dtype] for i in facts.inputs]
    return out


def _facts_in(wire: dict[str, Any]) -> Facts:
    given = msgspec.convert(wire.pop("inputs", []), type=list[_Input])
    inputs = tuple(Input(i.name, tuple(_dim_in(d) for d in i.shape), i.dtype) for i in given)
    facts = msgspec.convert(wire, type=Facts, strict=True)
    return replace(facts, inputs=inputs)
