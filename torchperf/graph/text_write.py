"""Capture -> text; the form is in text.py."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from .expr import Dim, Expr, Ratio, Scaled
from .graph import Block, Capture, Facts, Graph, Parameter, Segment
from .op import Attr, Op
from .tensor import Value
from .text_words import HEADER, listed, word

# how an argument must not begin where it means a size
_RESERVED = re.compile(r"(?:v\d+|None|True|False|inf|nan)(?!\w)", re.ASCII)


def show(capture: Capture) -> str:
    """The capture as text that `read` takes back."""
    lines = [HEADER]
    for graph in capture.graphs:
        lines += ["", *_graph(graph)]
    return "\n".join(lines) + "\n"


def _graph(graph: Graph) -> Iterator[str]:
    yield f"graph {word(graph.facts.model)}"
    for line in _facts(graph.facts):
        yield f"  {line}"
    if graph.bound is not None:
        yield "  " + " ".join(["bound", *(f"{word(name)}={size}" for name, size in graph.bound)])
    for i, block in enumerate(graph.blocks):
        yield f"  block b{i} {word(block.phase)}" + (f" {word(block.module)}" if block.module else "")
        for line in _block(block):
            yield f"    {line}"
    for segment in graph.segments:
        yield f"  {_segment(segment)}"


def _facts(facts: Facts) -> Iterator[str]:
    yield f"class {word(facts.model_class)}"
    yield f"mode {word(facts.mode)}"
    for name, size in facts.sizes:
        yield f"size {word(name)} = {size}"
    for name, low, high, step in facts.ranges:
        upper = "" if high == -1 else str(high)
        yield f"range {word(name)} {low}..{upper}" + (f" step {step}" if step else "")
    for name, limit in facts.limits:
        yield f"limit {word(name)} = {limit}"
    if facts.fixed:
        yield f"fixed {json.dumps(facts.fixed)}"
    if facts.unattributed:
        yield f"unattributed {facts.unattributed}"
    for text in facts.guesses:
        yield f"guess {json.dumps(text)}"
    for text in facts.assumptions:
        yield f"assumption {json.dumps(text)}"
    for name, version in facts.versions:
        yield f"version {word(name)} = {json.dumps(version)}"
    for name, style in facts.tp_plan:
        yield f"tp_plan {word(name)} = {json.dumps(style)}"
    for entry in facts.cache:
        bound = f" window {entry.window}" if entry.window else ""
        yield (
            f"cache {word(entry.module)}: {entry.kind} {word(entry.dtype)}, {entry.elements} elements, "
            f"{entry.heads} heads{bound} in {listed(entry.layers)}"
        )
    for name, value in facts.config:
        yield f"config {word(name)} = {_attr(value)}"
    for given in facts.inputs:
        yield f"input {word(given.name)}: {word(given.dtype)}{_dims(given.shape)}"
    for kind, parameters in (("parameter", facts.parameters), ("buffer", facts.buffers)):
        for parameter in parameters:
            yield f"{kind} {_parameter(parameter)}"
    if facts.outputs:
        yield f"outputs {listed(facts.outputs)}"


def _parameter(parameter: Parameter) -> str:
    names = ", ".join(map(word, parameter.names))
    place = f" @s{parameter.storage}" if parameter.storage != -1 else ""
    trainable = " trainable" if parameter.trainable else ""
    return f"{names}: {word(parameter.dtype)}{_dims(parameter.shape)}{place}{trainable}"


def _block(block: Block) -> Iterator[str]:
    for i, storage in enumerate(block.storages):
        name = "" if storage.name is None else f", {word(storage.name)}"
        yield f"s{i}: {word(storage.kind)}, {storage.nbytes} bytes{name}"
    index: dict[int, int] = {}
    for value in _values(block.ops):
        if id(value) not in index:
            yield f"v{len(index)}: {_value(value)}"
            index[id(value)] = len(index)
    for op in block.ops:
        yield from _op(op, index, block.phase, "")


def _values(ops: Iterable[Op]) -> Iterator[Value]:
    for op in ops:
        yield from op.inputs
        yield from op.outputs
        yield from _values(op.parts)


def _value(value: Value) -> str:
    offset = f"+{value.offset}" if value.offset != 0 else ""
    return f"{word(value.dtype)}{_dims(value.shape)} strides {_dims(value.strides)} @s{value.slot}{offset}"


def _op(op: Op, index: dict[int, int], phase: str, indent: str) -> Iterator[str]:
    names = [f"v{index[id(value)]}" for value in op.inputs]
    arguments = []
    for operand, group in groupby(zip(op.operands, names, strict=True), key=lambda pair: pair[0]):
        values = [name for _, name in group]
        arguments.append(f"{word(operand)}=" + (values[0] if len(values) == 1 else f"[{', '.join(values)}]"))
    arguments += [f"{word(key)}={_attr(attr)}" for key, attr in op.attrs]
    outputs = ", ".join(f"v{index[id(value)]}" for value in op.outputs)
    module = f" in {word(op.module)}" if op.module else ""
    during = f" during {word(op.phase)}" if op.phase != phase else ""
    result = f"{outputs} = " if outputs else ""
    yield f"{indent}{result}{word(op.name)}({', '.join(arguments)}){module}{during}"
    for part in op.parts:
        yield from _op(part, index, phase, indent + "  ")


def _attr(attr: Attr) -> str:
    if isinstance(attr, tuple):
        return f"[{', '.join(map(_attr, attr))}]"
    if isinstance(attr, str):
        return json.dumps(attr)
    if isinstance(attr, Expr):
        text = str(attr)
        return f"({text})" if _RESERVED.match(text) else text
    if isinstance(attr, Ratio):
        return f"{float(attr.numerator)!r} / ({attr.denominator})"
    if isinstance(attr, Scaled):
        return f"{float(attr.factor)!r} * ({attr.expr})"
    return repr(attr)


def _dims(dims: Sequence[Dim]) -> str:
    return f"[{', '.join(map(str, dims))}]"


def _segment(segment: Segment) -> str:
    module = f" {word(segment.module)}" if segment.module else ""
    return f"call b{segment.block}{module} {listed(segment.storages)}"
