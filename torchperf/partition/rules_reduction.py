"""Sums, norms, softmaxes and the loss: what is contracted, and what needs a statistic of the whole row."""

from __future__ import annotations

import math

from .algebra import Dim, Dims
from .rules import rule
from .step import LINEAR, Step


def _reduced(step: Step, over: list[int]) -> Dims:
    keep = len(step.out_shape()) == len(step.shape(0))
    return [[] if j in over else d for j, d in enumerate(step.dims(0)) if keep or j not in over]


def _statistic(step: Step, dim: Dim, value: int, numbers: int) -> None:
    """Sharded along `dim`, the op all-reduces `numbers` fp32 numbers a row of input `value`."""
    size = math.prod(f.size for f in dim)
    rows = math.prod(step.shape(value)) // max(size, 1)
    step.facts.statistic.append((dim, 4 * numbers * rows))


@rule("sum", "mean", "nansum")
def total(step: Step) -> None:
    over = step.dims_attr()
    step.put(0, _reduced(step, over), [step.dims(0)[j] for j in over])
    step.facts.linear, step.facts.through = LINEAR, (0,)


@rule("amax", "amin", "max", "min", "argmax", "argmin", "any", "all", "prod", "var", "std", "var_mean", "logsumexp",
      "linalg_vector_norm", "norm", "median", "std_mean", "_is_all_true", "_is_any_true",
      "_local_scalar_dense")  # fmt: skip
def extreme(step: Step) -> None:
    """Not a sum: along a sharded dim it needs everything."""
    over = step.dims_attr()
    step.facts.opaque += [step.dims(0)[j] for j in over]
    for j in range(len(step.op.outputs)):
        reduced = _reduced(step, over)
        step.put(j, reduced if len(reduced) == len(step.out_shape(j)) else step.fresh(step.out_shape(j)))


@rule("_softmax", "_log_softmax", "softmax", "log_softmax", "_safe_softmax")
def softmax(step: Step) -> None:
    """Largest element and sum of a row."""
    dims = step.dims(0)
    step.put(0, dims)
    if dims:
        _statistic(step, dims[step.dim_attr()], 0, 2)


@rule("_softmax_backward_data", "_log_softmax_backward_data")
def softmax_backward(step: Step) -> None:
    """One sum over the row: of grad * output, or of grad."""
    dims = step.broadcast([0, 1], step.out_shape())
    step.put(0, dims)
    if dims:
        _statistic(step, dims[step.dim_attr(default=-1)], 0, 1)


def _bind_norm(step: Step, dims: Dims, operands: tuple[str, ...], width: int) -> None:
    for name in operands:
        found = step.of(name)
        if found is not None:
            for x, y in zip(found, dims[len(dims) - width :], strict=True):
                step.same(x, y)


@rule("native_layer_norm", "_fused_rms_norm", "native_layer_norm_")
def layer_norm(step: Step) -> None:
    dims, width = list(step.dims(0)), len(step.op.attr("normalized_shape", (1,)))
    _bind_norm(step, dims, ("weight", "bias"), width)
    for dim in dims[-width:]:
        _statistic(step, dim, 0, 2)
    rows: Dims = [*dims[:-width], *([[]] * width)]
    for j in range(len(step.op.outputs)):
        step.put(j, dims if j == 0 else rows)


@rule("native_layer_norm_backward", "_fused_rms_norm_backward")
def layer_norm_backward(step: Step) -> None:
    """dx needs two sums over the row; dweight and dbias sum over the rows."""
    width = len(step.op.attr("normalized_shape", (1,)))
    dims = step.broadcast([0, 1], step.shape(1))
    _bind_norm(step, dims, ("weight", "bias"), width)
    for name in ("mean", "rstd"):
        found = step.of(name)
        for x, y in zip(found or [], dims, strict=False):
            if x:
                step.same(x, y)
    for dim in dims[-width:]:
        _statistic(step, dim, 1, 2)
    for j in range(len(step.op.outputs)):
        if len(step.out_shape(j)) == len(dims):
            step.put(j, dims)
        else:
            step.put(j, dims[-width:], dims[:-width])


@rule("nll_loss_forward")
def nll_loss(step: Step) -> None:
    """Each row reads one log-probability: rows and classes are contracted; the second output counts the rows."""
    dims = step.dims(0)
    step.same(dims[0], step.dims(1)[0])
    step.put(0, [], dims if not step.out_shape() else dims[1:])
    step.put(1, [], dims[:1])
    if step.out_shape():
        step.put(0, dims[:1], dims[1:])


@rule("nll_loss_backward")
def nll_loss_backward(step: Step) -> None:
    step.put(0, step.dims(1))
    step.same(step.dims(1)[0], step.dims(2)[0])


@rule("mse_loss", "mse_loss_backward", "smooth_l1_loss", "binary_cross_entropy_with_logits")
def pointwise_loss(step: Step) -> None:
    backward = "backward" in step.op.name
    operands = [i for i in range(len(step.op.inputs)) if step.shape(i)]
    shape = step.shape(operands[0]) if operands else ()
    dims = step.broadcast(operands, shape)
    if backward or step.out_shape():
        step.put(0, dims)
    else:
        step.put(0, [], dims)
