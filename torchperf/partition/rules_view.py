"""Ops that only move or rename: views, transposes, slices, concatenations. All are linear."""

from __future__ import annotations

import math

from .algebra import Clash, Dim, cut, flatten, fresh, sum_of, unify
from .rules import rule
from .step import LINEAR, PRODUCT, Step, is_float


def _linear(step: Step, *through: int) -> None:
    step.facts.linear = LINEAR
    step.facts.kind = "view"
    step.facts.through = through or (0,)


@rule("detach", "alias", "clone", "contiguous", "lift_fresh", "positive", "lift_fresh_copy")
def same(step: Step) -> None:
    _linear(step)
    step.put(0, step.dims(0))


@rule("_to_copy", "to")
def cast(step: Step) -> None:
    """A sum still to be done passes a cast only where that makes it cheaper: rounding aside, a cast is linear."""
    step.put(0, step.dims(0))
    step.facts.linear, step.facts.through = PRODUCT, (0,)


@rule("view", "_unsafe_view", "reshape", "squeeze", "unsqueeze", "flatten", "unflatten", "_reshape_alias")
def view(step: Step) -> None:
    """The same elements in the same order: the flattened factor lists are one list."""
    _linear(step)
    source, shape = step.dims(0), step.out_shape()
    if shape == step.shape(0):
        step.put(0, source)
        return
    kept = [d for d, n in zip(source, step.shape(0), strict=True) if n != 1]
    if [n for n in shape if n != 1] == [n for n in step.shape(0) if n != 1]:  # only sizes of 1 come or go
        step.put(0, [[] if n == 1 else kept.pop(0) for n in shape])
        return
    dims = step.fresh(shape)
    if math.prod(shape) != math.prod(step.shape(0)):
        step.note("a view of another size")
    else:
        step.same([f for d in dims for f in d], [f for d in source for f in d])
    step.put(0, dims)


@rule("view_as_complex")
def view_as_complex(step: Step) -> None:
    """[.., n, 2] -> [.., n] complex: a pair stays together."""
    _linear(step)
    step.facts.opaque.append(step.dims(0)[-1])
    step.put(0, step.dims(0)[:-1])


@rule("view_as_real")
def view_as_real(step: Step) -> None:
    """[.., n] complex -> [.., n, 2]."""
    _linear(step)
    step.put(0, [*step.dims(0), *step.fresh([2])])


@rule("t", "numpy_T")
def t(step: Step) -> None:
    _linear(step)
    step.put(0, step.dims(0)[::-1])


@rule("transpose")
def transpose(step: Step) -> None:
    _linear(step)
    dims = list(step.dims(0))
    a, b = step.dim_attr("dim0"), step.dim_attr("dim1")
    dims[a], dims[b] = dims[b], dims[a]
    step.put(0, dims)


@rule("permute")
def permute(step: Step) -> None:
    _linear(step)
    step.put(0, [step.dims(0)[d] for d in step.dims_attr("dims")])


@rule("expand", "repeat", "expand_copy", "tile")
def expand(step: Step) -> None:
    """A stretched dim is a factor of its own (repeated KV heads: the group)."""
    _linear(step)
    dims, shape = step.dims(0), step.out_shape()
    lead = len(shape) - len(dims)
    out = []
    for j, size in enumerate(shape):
        kept = j >= lead and step.shape(0)[j - lead] == size
        if kept:
            out.append(dims[j - lead])
        elif j >= lead and dims[j - lead] and size % step.shape(0)[j - lead] == 0:  # repeat of a dim: copies outermost
            out.append([*fresh(size // step.shape(0)[j - lead]), *dims[j - lead]])
        else:
            out.append(fresh(size))
    step.put(0, out)


def _piece(step: Step, dim: Dim, size: int, start: int, length: int) -> Dim:
    """The positions [start, start + length) of a dim. Indices (a label shift) get factors of their own: tying
    (1, S-1) to (S-1, 1) would never end."""
    if length == size:
        return dim
    if length == 0 or not is_float(step.op.inputs[0]):
        return fresh(length)
    pieces = step.cut(dim, [p for p in (start, start + length) if 0 < p < size])
    return fresh(length) if pieces is None else pieces[0 if start == 0 else 1]


def _start(value: object, size: int) -> int:
    start = int(value) if isinstance(value, int) else 0
    return max(0, min(size, start + size if start < 0 else start))


@rule("slice", "narrow")
def slice_(step: Step) -> None:
    _linear(step)
    d = step.dim_attr()
    size, length = step.shape(0)[d], step.out_shape()[d]
    dims, every = list(step.dims(0)), int(step.op.attr("step", 1))
    if every == 1:
        dims[d] = _piece(step, dims[d], size, _start(step.op.attr("start"), size), length)
    elif length * every == size and is_float(step.op.inputs[0]):
        outer = [*fresh(length), *fresh(every)]
        dims[d] = outer[:1] if step.same(outer, dims[d]) else fresh(length)
    else:
        dims[d] = fresh(length)
    step.put(0, dims)


@rule("split", "split_with_sizes", "chunk", "unbind_copy")
def split(step: Step) -> None:
    _linear(step)
    d = step.dim_attr()
    lengths = [step.out_shape(j)[d] for j in range(len(step.op.outputs))]
    at = [sum(lengths[:j]) for j in range(1, len(lengths))]
    pieces = [step.dims(0)[d]] if not at else step.cut(step.dims(0)[d], at) if is_float(step.op.inputs[0]) else None
    for j, length in enumerate(lengths):
        dims = list(step.dims(0))
        dims[d] = fresh(length) if pieces is None or length == 1 else pieces[j]
        step.put(j, dims)


@rule("select")
def select(step: Step) -> None:
    _linear(step)
    dims = list(step.dims(0))
    taken = dims.pop(step.dim_attr())
    step.facts.opaque.append(taken)
    step.put(0, dims)


@rule("unbind")
def unbind(step: Step) -> None:
    _linear(step)
    d = step.dim_attr()
    step.facts.opaque.append(step.dims(0)[d])
    for j in range(len(step.op.outputs)):
        step.put(j, [dim for k, dim in enumerate(step.dims(0)) if k != d])


@rule("cat", "stack")
def cat(step: Step) -> None:
    """The joined dim is a sum of the pieces."""
    _linear(step, *range(len(step.op.inputs)))
    rank = len(step.out_shape())
    d = step.dim_attr(rank=rank)
    parts = [i for i in range(len(step.op.inputs)) if math.prod(step.shape(i))]
    if step.op.name.startswith("aten.stack"):
        new = fresh(step.out_shape()[d])
        dims = step.broadcast(parts, step.shape(parts[0]))
        step.put(0, [*dims[:d], new, *dims[d:]])
        return
    if len(parts) == 1:
        step.put(0, step.dims(parts[0]))
        return
    out = []
    for j in range(rank):
        if j == d:
            out.append([sum_of([step.dims(i)[j] for i in parts])])
        else:
            for i in parts[1:]:
                step.same(step.dims(parts[0])[j], step.dims(i)[j])
            out.append(step.dims(parts[0])[j])
    step.put(0, out)


@rule("slice_backward")
def slice_backward(step: Step) -> None:
    """The gradient in its place among zeros: the dim is cut as the slice cut it."""
    _linear(step)
    rank = len(step.out_shape())
    d = step.dim_attr(rank=rank)
    size, length = step.out_shape()[d], step.shape(0)[d]
    dims, every = list(step.dims(0)), int(step.op.attr("step", 1))
    whole = fresh(size)
    start = _start(step.op.attr("start"), size)
    at = [p for p in (start, start + length) if 0 < p < size]
    if every != 1:
        whole = [*dims[d], *fresh(every)] if length * every == size else whole
    elif length in (0, size):
        whole = dims[d] if length else whole
    else:
        try:
            unify(cut(whole, at)[0 if start == 0 else 1], dims[d])
        except Clash as clash:
            step.note(str(clash))
    dims[d] = whole
    step.put(0, dims)


@rule("select_backward")
def select_backward(step: Step) -> None:
    _linear(step)
    d = step.dim_attr(rank=len(step.out_shape()))
    dims = list(step.dims(0))
    dims.insert(d, fresh(step.out_shape()[d]))
    step.put(0, dims)


@rule("constant_pad_nd")
def pad(step: Step) -> None:
    """A padded dim is (before + own + after); zeros are linear, another fill is not."""
    if step.op.attr("value", 0) == 0:
        _linear(step)
    sizes = tuple(step.op.attr("pad", ()))
    dims = list(step.dims(0))
    for k in range(len(sizes) // 2):
        j = len(dims) - 1 - k
        before, after = int(sizes[2 * k]), int(sizes[2 * k + 1])
        if not before and not after:
            continue
        if min(before, after) < 0 or not is_float(step.op.inputs[0]) or not flatten(dims[j]):
            dims[j] = fresh(step.out_shape()[j])
        else:
            dims[j] = [sum_of([*([fresh(before)] if before else []), dims[j], *([fresh(after)] if after else [])])]
    step.put(0, dims)
