"""Readings by strides: gradients of what was written in place to a part of a tensor."""

from __future__ import annotations

import math
from collections.abc import Iterable

from ..graph.tensor import Value
from .algebra import Dims
from .rules import rule
from .rules_view import _linear as linear
from .rules_view import _piece as piece
from .rules_view import view
from .step import Step


@rule("as_strided")
def as_strided(step: Step) -> None:
    """A slice of one dim, where strides are the input's own; else a reading of its own."""
    linear(step)
    source, value = step.op.inputs[0], step.op.outputs[0]
    differing = [j for j, (a, b) in enumerate(zip(source.shape, value.shape, strict=False)) if a != b]
    if len(source.shape) == len(value.shape) and source.strides == value.strides:
        dims = list(step.dims(0))
        if not differing:
            step.put(0, dims)
            return
        if len(differing) == 1:
            d = differing[0]
            start = (int(value.offset) - int(source.offset)) // int(source.strides[d])  # type: ignore[arg-type]
            dims[d] = piece(step, dims[d], step.shape(0)[d], start, step.out_shape()[d])
            step.put(0, dims)
            return
    if math.prod(step.out_shape()) == math.prod(step.shape(0)) and sorted(
        (s, n) for s, n in zip(source.strides, source.shape, strict=True) if n != 1
    ) == sorted((s, n) for s, n in zip(value.strides, value.shape, strict=True) if n != 1):
        by_stride = {s: d for s, n, d in zip(source.strides, source.shape, step.dims(0), strict=True) if n != 1}
        step.put(0, [[] if n == 1 else by_stride[s] for s, n in zip(value.strides, value.shape, strict=True)])
        return
    found = _selected(step)
    if found is not None:
        step.put(0, found)
        return
    if _contiguous(source) and _contiguous(value) and math.prod(step.out_shape()) == math.prod(step.shape(0)):
        view(step)
        return
    step.facts.known = False
    step.put(0, step.fresh(step.out_shape()))


def _contiguous(value: Value) -> bool:
    """Whether the elements lie one behind the other."""
    step = 1
    for size, stride in zip(_numbers(reversed(value.shape)), _numbers(reversed(value.strides)), strict=True):
        if size != 1 and stride != step:
            return False
        step *= size
    return True


def _numbers(dims: Iterable[object]) -> list[int]:
    """Dims of a bound value."""
    return list(dims)  # type: ignore[arg-type]


def _selected(step: Step) -> Dims | None:
    """The dims of a reading that keeps whole dims of the input or a piece of them, told by their strides, and takes
    one position of the others; None where strides do not tell.
    """
    source, value = step.op.inputs[0], step.op.outputs[0]
    strides = _numbers(source.strides)
    rows = [(s, d) for d, (s, n) in enumerate(zip(strides, step.shape(0), strict=True)) if n != 1]
    places = dict(rows)
    if len(places) < len(rows) or 0 in places:
        return None
    start: dict[int, int] = {}
    end, begin = _numbers((value.offset, source.offset))
    rest = end - begin
    for stride, d in sorted(rows, reverse=True):
        start[d], rest = divmod(rest, stride)
    out: Dims = []
    for size, stride in zip(step.out_shape(), _numbers(value.strides), strict=True):
        d = places.get(stride, -1) if size != 1 else -1
        if size != 1 and (d < 0 or start[d] + size > step.shape(0)[d]):
            return None
        out.append([] if size == 1 else piece(step, step.dims(0)[d], step.shape(0)[d], start[d], size))
    return None if rest else out
