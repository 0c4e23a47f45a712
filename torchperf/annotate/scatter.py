"""Writes at given indices: out of place the whole tensor is copied, in place only what is touched."""

from __future__ import annotations

from math import prod

from torchperf.graph.op import Op
from torchperf.graph.tensor import Value
from torchperf.graph.work import Work

from .registry import aten, rule
from .traffic import in_place, listed, moved, part, read, read_except, shape, written


def scattered(op: Op, touched: int, adds: bool) -> Work:
    """`touched` elements of `self` written, from `src` or a constant.

    flops    touched where values are added, else 0
    read     in place: indices and source, and what is touched where values are added; else every operand
    write    in place: what is touched; else the whole result
    """
    flops = touched if adds else 0
    if not in_place(op):
        return moved(op, "gather", read(op), written(op), flops)
    nbytes = part(op.operand("self"), touched)
    return moved(op, "gather", read_except(op, "self") + (nbytes if adds else 0), nbytes, flops)


@rule("aten.scatter")
def scatter(op: Op) -> Work:
    """self[index] = src or a constant, along one dim; touches |index| elements."""
    return scattered(op, op.operand("index").numel, op.attr("reduce") is not None)


@rule("aten.scatter_add", "aten.scatter_reduce")
def scatter_add(op: Op) -> Work:
    """self[index] += src along one dim; touches |index| elements, one FLOP each."""
    return scattered(op, op.operand("index").numel, True)


@rule("aten.index_add", "aten.index_reduce")
def index_add(op: Op) -> Work:
    """Rows of source added to the rows of self at `index`; touches |source| elements, one FLOP each."""
    return scattered(op, op.operand("source").numel, True)


@rule("aten.index_copy")
def index_copy(op: Op) -> Work:
    """Rows of source copied to the rows of self at `index`; touches |source| elements."""
    return scattered(op, op.operand("source").numel, False)


@rule("aten.index_fill")
def index_fill(op: Op) -> Work:
    """Rows of self at `index` filled with a constant; touches |index| rows."""
    x, index = op.operand("self"), op.operand("index")
    dims = shape(x)
    row = x.numel // dims[op.attr("dim", 0)] if x.numel and dims else 1
    return scattered(op, index.numel * row, False)


@rule("aten.put")
def put(op: Op) -> Work:
    """self.flat[index] = source; touches |index| elements."""
    return scattered(op, op.operand("index").numel, bool(op.attr("accumulate", False)))


@rule(*aten("index_put _unsafe_index_put _index_put_impl _unsafe_masked_index_put_accumulate"))
def index_put(op: Op) -> Work:
    """self[indices] = values, or += where accumulate; touches |values| elements, for one value what is named

    ignores  which dims the indices stand for: one value at n positions counts n elements, a mask all of self
    """
    x, values = op.operand("self"), op.operand("values")
    indices = listed(op, "indices")
    touched = values.numel if values.numel > 1 else _named(x, indices)
    adds = bool(op.attr("accumulate", False)) or "accumulate" in op.name
    return scattered(op, min(touched, x.numel), adds)


@rule("aten.masked_scatter")
def masked_scatter(op: Op) -> Work:
    """self where the mask is unset, source where it is set; how much that is lies in the data: all counts."""
    return moved(op, "gather", read(op), written(op))


@rule("aten.gather_backward", "aten.value_selecting_reduction_backward", "aten.masked_select_backward",
      "aten.masked_scatter_backward")  # fmt: skip
def spread(op: Op) -> Work:
    """A gradient put back where its elements were picked: read it, write the whole zeroed result."""
    return moved(op, "gather", read_except(op, "self"), written(op))


def _named(x: Value, indices: list[Value]) -> int:
    if not indices or any(value.dtype in ("bool", "u8") for value in indices):
        return x.numel
    return prod(max(sizes) for sizes in _broadcast([shape(value) for value in indices]))


def _broadcast(shapes: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
    rank = max(len(dims) for dims in shapes)
    return list(zip(*[(1,) * (rank - len(dims)) + dims for dims in shapes], strict=True))
