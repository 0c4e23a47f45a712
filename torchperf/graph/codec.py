"""Capture <-> JSON bytes. No I/O, and nothing in such a file can run code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec

from .dtype import bits
from .errors import TorchperfError
from .expr import Dim, Expr, Ratio, Scaled, parse
from .graph import MODES, Block, Capture, Facts, Graph, Input, Segment
from .op import PHASES, Attr, Op
from .tensor import Storage, Value

FORMAT = "torchperf-graph"
VERSION = 1

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
    try:
        head = msgspec.json.decode(data, type=_Head)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise _corrupt(origin, str(error)) from None
    if head.format != FORMAT or head.version != VERSION:
        raise TorchperfError(
            f"`{origin}` is a graph of another version",
            facts=[("file", f"{head.format} {head.version}"), ("this program", f"{FORMAT} {VERSION}")],
            hint="capture the model again with `torchperf capture MODEL -o FILE`",
        )
    try:
        wire = msgspec.json.decode(data, type=_File)
        if not wire.graphs:
            raise ValueError("it holds no graph")
        return Capture(tuple(map(_graph_in, wire.graphs))), wire.files
    except (msgspec.DecodeError, TorchperfError, ValueError, TypeError, IndexError, KeyError, RecursionError) as error:
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
    _check(graph)
    return graph


def _check(graph: Graph) -> None:
    """Refuse words and sizes that no capture holds."""
    facts = graph.facts
    sizes = {name for name, *_ in facts.ranges}
    if {name for name, _ in facts.sizes} != sizes or not {name for name, _ in facts.limits} <= sizes:
        raise ValueError("the sizes of its facts are not those of its ranges")
    if facts.mode not in MODES:
        raise ValueError(f"unknown mode `{facts.mode}`")
    for block in graph.blocks:
        if block.phase not in PHASES or any(op.phase not in PHASES for op in block.ops):
            raise ValueError("unknown phase")
        dims: set[Dim] = {s.nbytes for s in block.storages}
        for value in block.values():
            bits(value.dtype)
            dims.update((*value.shape, *value.strides, value.offset))
        for dim in dims:
            names = {factor[1] for term in dim.terms for factor in term.factors} if isinstance(dim, Expr) else set()
            if not names <= sizes:
                raise ValueError(f"`{dim}` names a size that the graph has not")


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
    inputs = tuple(Input(n, tuple(_dim_in(d) for d in shape), dtype) for n, shape, dtype in wire.pop("inputs", []))
    facts = msgspec.convert(wire, type=Facts, strict=True)
    return replace(facts, inputs=inputs)
