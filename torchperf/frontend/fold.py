"""Tape -> Graph: runs of ops become blocks, blocks that repeat are stored once.

A unit is a child of a ModuleList or Sequential that has a sibling of the same class and parameter shapes: a layer. A
run is a longest stretch of ops of one unit in one phase (or of none). Runs with equal signature (ops, modules within
the layer, numbers, and which storages are the same) are one block.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn

from ..graph.expr import Dim, Expr, Ratio, Scaled
from ..graph.graph import Block
from ..graph.op import Attr, Op
from ..graph.tensor import Storage, Value
from .tape import Tape

Fitted = Dim | float | Ratio | Scaled
Signature = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Run:
    """Ops `start` to `stop` of a tape, of one unit ("" for none) and phase."""

    start: int
    stop: int
    unit: str
    phase: str


def units(module: nn.Module) -> dict[str, str]:
    """Path of each repeated layer -> path of the list it is in, outermost lists with true repetition only."""
    found: dict[str, str] = {}

    def shape_of(child: nn.Module) -> Signature:
        return (type(child), tuple((n, tuple(p.shape)) for n, p in child.named_parameters()))

    def walk(path: str, parent: nn.Module) -> None:
        children = [(f"{path}.{name}" if path else name, child) for name, child in parent.named_children()]
        if isinstance(parent, (nn.ModuleList, nn.Sequential)) and len(children) > 1:
            shapes = [shape_of(child) for _, child in children]
            if len(set(shapes)) < len(shapes) and any(list(child.children()) for _, child in children):
                found.update({name: path for name, _ in children})
                return
        for name, child in children:
            walk(name, child)

    walk("", module)
    return found


def runs(tape: Tape, layers: dict[str, str]) -> list[Run]:
    """The tape cut where the unit or the phase changes."""
    unit_of: dict[str, str] = {}

    def unit(path: str) -> str:
        known = unit_of.get(path)
        if known is None:
            known, prefix = "", path
            while prefix:
                if prefix in layers:
                    known = prefix
                    break
                prefix = prefix.rpartition(".")[0]
            unit_of[path] = known
        return known

    cut: list[Run] = []
    start, here = 0, ("", "")
    for i, module in enumerate(tape.modules):
        place = (unit(module), tape.phase(i))
        if place != here:
            if i > start:
                cut.append(Run(start, i, *here))
            start, here = i, place
    if len(tape) > start:
        cut.append(Run(start, len(tape), *here))
    return cut


def _relative(path: str, unit: str) -> str:
    return "*" + path[len(unit) :] if unit and (path == unit or path.startswith(unit + ".")) else path


def starred(path: str, unit: str, layers: dict[str, str]) -> str:
    """`path` with the index of the unit it lies in replaced by `*`."""
    if unit and (path == unit or path.startswith(unit + ".")):
        return f"{layers[unit]}.*{path[len(unit) :]}"
    return path


def signature(tape: Tape, run: Run) -> Signature:
    """What makes two runs the same block at the sizes of this tape."""
    local: dict[int, int] = {}
    marks = []
    first, last = tape.tensor_start[run.start], tape.tensor_start[run.stop]
    pattern = []
    for storage in tape.storages[first:last]:
        slot = local.get(storage)
        if slot is None:
            slot = local[storage] = len(local)
            name = tape.names[storage]
            marks.append((tape.kinds[storage], None if name is None else _relative(name, run.unit)))
        pattern.append(slot)
    modules = tuple(_relative(m, run.unit) for m in tape.modules[run.start : run.stop])
    return (
        run.phase,
        re.sub(r"\d+$", "", run.unit),
        tuple(tape.keys[run.start : run.stop]),
        modules,
        tuple(tape.slots[tape.slot_start[run.start] : tape.slot_start[run.stop]]),
        tuple(pattern),
        tuple(marks),
    )


def build_block(
    tape: Tape, run: Run, numbers: Callable[[int], Fitted], layers: dict[str, str]
) -> tuple[Block, tuple[int, ...]]:
    """The block of one run, its numbers from `numbers(slot)`, and the program storages of its slots."""
    local: dict[int, int] = {}
    storages: list[Storage] = []
    values: dict[tuple[Any, ...], Value] = {}
    tensors = iter(range(tape.tensor_start[run.start], tape.tensor_start[run.stop]))
    slots = iter(range(tape.slot_start[run.start], tape.slot_start[run.stop]))

    def tensor(ndim: int, dtype: str) -> Value:
        storage = tape.storages[next(tensors)]
        shape = tuple(_dim(numbers(next(slots))) for _ in range(ndim))
        strides = tuple(_dim(numbers(next(slots))) for _ in range(ndim))
        offset, nbytes = _dim(numbers(next(slots))), _dim(numbers(next(slots)))
        slot = local.get(storage)
        if slot is None:
            slot = local[storage] = len(storages)
            name = tape.names[storage]
            storages.append(
                Storage(nbytes, tape.kinds[storage], None if name is None else starred(name, run.unit, layers))
            )
        value = Value(slot, dtype, shape, strides, offset)
        return values.setdefault((slot, dtype, shape, strides, offset), value)

    ops = tuple(
        _op(tape, i, tensor, lambda: numbers(next(slots)), starred(tape.modules[i], run.unit, layers))
        for i in range(run.start, run.stop)
    )
    module = f"{layers[run.unit]}.*" if run.unit else ""
    return Block(module, run.phase, tuple(storages), ops), tuple(local)


def _dim(number: Fitted) -> Dim:
    assert isinstance(number, (int, Expr))
    return number


def _op(tape: Tape, i: int, tensor: Callable[[int, str], Value], number: Callable[[], Fitted], module: str) -> Op:
    key = tape.keys[i]
    operands: list[str] = []
    inputs: list[Value] = []
    outputs: list[Value] = []
    attrs: list[tuple[str, Attr]] = []
    entries: Iterator[Any] = iter(key[2:])

    def attribute(entry: Any) -> Attr:
        tag = entry[0]
        if tag == "C":
            return entry[2]
        if tag == "(":
            return tuple(attribute(next(entries)) for _ in range(entry[2]))
        return number()

    for entry in entries:
        tag, name = entry[0], entry[1]
        if tag == "T":
            operands.append(name)
            inputs.append(tensor(entry[2], entry[3]))
        elif tag == "O":
            outputs.append(tensor(entry[2], entry[3]))
        elif name in ("", "->"):  # part of what the op returned that is not a tensor
            attribute(entry)
        else:
            attrs.append((name, attribute(entry)))
    return Op(str(key[0]), str(key[1]), module, tuple(operands), tuple(inputs), tuple(outputs), tuple(attrs))
