"""Lookups, scatters, sorts and scans: embedding tables and the routing of tokens to experts."""

from __future__ import annotations

from .algebra import Dim, Dims
from .rules import rule
from .step import PRODUCT, Step


@rule("embedding")
def embedding(step: Step) -> None:
    """table[v, h], ids -> [ids.., h]: v is contracted, a rank adds nothing for the rows that it does not hold.

    Ids that the caller gives name a vocabulary, ids that the model makes name positions.
    """
    step.facts.kind = "lookup"
    table = step.dims(0)
    step.put(0, [*step.dims(1), table[1]], [table[0]])
    step.hint(table[0], "vocab" if step.kinds[1] == "input" else "positions")


@rule("embedding_dense_backward")
def embedding_backward(step: Step) -> None:
    """Each id's gradient is added to its row: the ids' dims are contracted, rows are made anew."""
    grad, ids = step.dims(0), step.dims(1)
    for x, y in zip(grad[:-1], ids, strict=True):
        if x and y:
            step.same(x, y)
    step.put(0, [step.fresh([step.out_shape()[0]])[0], grad[-1]], list(grad[:-1]))
    step.facts.linear, step.facts.through = PRODUCT, (0,)


@rule("gather", "take_along_dim")
def gather(step: Step) -> None:
    step.facts.kind = "lookup"
    source, index = step.dims(0), step.dims(1)
    if not index:
        step.put(0, [])
        return
    d = step.dim_attr()
    for j in range(len(index)):
        if j != d and step.shape(0)[j] == step.shape(1)[j]:
            step.same(source[j], index[j])
    step.put(0, list(index), [source[d]])
    step.facts.linear, step.facts.through = PRODUCT, (0,)


@rule("scatter", "scatter_", "scatter_add", "scatter_add_", "scatter_reduce", "scatter_reduce_")
def scatter(step: Step) -> None:
    """The index's positions along `dim` are contracted into self; other dims are the same."""
    d = step.dim_attr()
    target, index = step.dims(0), step.of("index")
    source = step.of("src")
    lost: list[Dim] = []
    if index is not None and index:
        for j in range(len(index)):
            if j == d:
                lost.append(index[j])
            elif step.shape(0)[j] == step.op.operand("index").shape[j]:
                step.same(target[j], index[j])
        if source is not None:
            for x, y in zip(source, index, strict=True):
                step.same(x, y)
    adds = "add" in step.op.name
    step.facts.opaque += [target[d]] if target else []
    if not adds:
        step.facts.opaque += lost
    step.put(0, target, lost if adds else ())
    if source is not None:
        step.facts.linear, step.facts.through = PRODUCT, (len(step.op.inputs) - 1,)


def _indexed(step: Step, shape: tuple[int, ...], out: tuple[int, ...]) -> tuple[list[int], list[int], int]:
    """(indices' operands, the dims of self that they stand for, where their own dims stand in `out`)."""
    which = [i for i, name in enumerate(step.op.operands) if name == "indices"]
    rank = max((len(step.shape(i)) for i in which), default=0)
    own = [max(step.shape(i)[-j] for i in which if len(step.shape(i)) >= j) for j in range(rank, 0, -1)]
    for at in range(len(shape) - len(which) + 1):
        rest = (*shape[:at], *shape[at + len(which) :])
        fits = all(n in (1, m) for n, m in zip(out[at : at + rank], own, strict=False))
        if fits and len(out) == len(rest) + rank and out[:at] == rest[:at] and out[at + rank :] == rest[at:]:
            return which, list(range(at, at + len(which))), at
    return which, list(range(len(which))), -1


@rule("index", "_unsafe_index")
def index(step: Step) -> None:
    """self[i, j, ..]: the dims that are indexed are contracted, the indices' own dims take their place."""
    step.facts.kind = "lookup"
    which, taken, at = _indexed(step, step.shape(0), step.out_shape())
    dims = step.dims(0)
    if at < 0 or any(step.op.inputs[i].dtype in ("bool", "u8") for i in which):
        step.facts.opaque += list(dims)
        step.put(0, step.fresh(step.out_shape()))
        return
    rank = max(len(step.shape(i)) for i in which)
    own = step.broadcast(which, step.out_shape()[at : at + rank])
    step.put(0, [*dims[:at], *own, *dims[at + len(which) :]], [dims[j] for j in taken])
    step.facts.linear, step.facts.through = PRODUCT, (0,)


@rule("index_put", "index_put_", "_index_put_impl_", "_unsafe_index_put")
def index_put(step: Step) -> None:
    """self[i] = or += values: the indices' dims are contracted into self where values are added."""
    target = step.dims(0)
    values = step.index("values")
    step.put(0, target)
    if values is None:
        return
    which, taken, at = _indexed(step, step.shape(0), step.shape(values))
    adds = bool(step.op.attr("accumulate", False))
    step.facts.opaque += [target[j] for j in taken]
    if at < 0:
        step.facts.opaque += list(target)
        return
    rank = max((len(step.shape(i)) for i in which), default=0)
    given = step.dims(values)
    rest = [j for j in range(len(target)) if j not in taken]
    for j, x in zip(rest, [*given[:at], *given[at + rank :]], strict=True):
        step.same(target[j], x)
    own = list(given[at : at + rank])
    for i in which:
        for x, y in zip(reversed(step.dims(i)), reversed(own), strict=False):
            if x and y:
                step.same(x, y)
    if not adds:
        step.facts.opaque += own
    step.put(0, target, own if adds else ())
    step.facts.linear, step.facts.through = PRODUCT, (values,)


@rule("index_add", "index_add_", "index_copy", "index_select", "index_fill", "index_fill_")
def index_along(step: Step) -> None:
    d = step.dim_attr()
    dims = list(step.dims(0))
    if "select" in step.op.name:
        step.facts.kind = "lookup"
        lost = dims[d]
        dims[d] = step.dims(1)[0] if step.dims(1) else []
        step.put(0, dims, [lost])
        step.facts.linear, step.facts.through = PRODUCT, (0,)
        return
    source = step.of("source")
    step.facts.opaque.append(dims[d])
    lost_rows: Dims = []
    if source is not None:
        for j, x in enumerate(source):
            if j != d:
                step.same(x, dims[j])
        lost_rows = [source[d]]
    step.put(0, dims, lost_rows if "add" in step.op.name else ())


@rule("sort", "argsort")
def sort(step: Step) -> None:
    """A sorted dim has positions of its own."""
    dims = list(step.dims(0))
    d = step.dim_attr(default=-1)
    step.facts.opaque.append(dims[d])
    dims[d] = step.fresh([step.out_shape()[d]])[0]
    for j in range(len(step.op.outputs)):
        step.put(j, dims)


@rule("topk", "kthvalue")
def topk(step: Step) -> None:
    dims = list(step.dims(0))
    d = step.dim_attr(default=-1)
    step.facts.opaque.append(dims[d])
    dims[d] = step.fresh([step.out_shape()[d]])[0]
    for j in range(len(step.op.outputs)):
        step.put(j, dims)


@rule("histc", "bincount", "nonzero", "unique", "_unique2", "multinomial", "searchsorted", "bucketize")
def count(step: Step) -> None:
    for i in range(len(step.op.inputs)):
        step.facts.opaque += step.dims(i)
    for j in range(len(step.op.outputs)):
        step.put(j, step.fresh(step.out_shape(j)))


@rule("cumsum", "cumprod", "cummax", "logcumsumexp", "flip", "roll", "cumsum_")
def scan(step: Step) -> None:
    dims = step.dims(0)
    over = step.dims_attr("dims") if step.op.attr("dims") is not None else [step.dim_attr()]
    step.facts.opaque += [dims[j] for j in over if dims]
    for j in range(len(step.op.outputs)):
        step.put(j, dims)
    if "prod" not in step.op.name and "max" not in step.op.name and "log" not in step.op.name:
        step.facts.linear, step.facts.through = PRODUCT, (0,)
