"""Layer, RMS, group, batch and instance norms, forward and backward, as one kernel each.

FLOPs per element are counts of the arithmetic of a two-pass kernel, rough by nature; bytes decide the price.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from torchperf.graph.op import Op
from torchperf.graph.work import Work

from .registry import aten, rule
from .traffic import listed, rows_and_width, shape, vector

LAYER_NORM = 6  # mean: 1, variance: 3, normalize: 2
RMS_NORM = 3  # square and sum: 2, scale: 1
AFFINE = 1  # each of weight and bias
LAYER_NORM_BACKWARD = 11  # x_hat: 2, two row sums: 3, dx: 4, dweight and dbias: 2
BATCH_NORM = """
    native_batch_norm _native_batch_norm_legit cudnn_batch_norm miopen_batch_norm _batch_norm_with_update
    _native_batch_norm_legit_functional batch_norm instance_norm"""
BATCH_NORM_BACKWARD = """
    native_batch_norm_backward cudnn_batch_norm_backward miopen_batch_norm_backward batch_norm_backward"""
RMS_NORM_BACKWARD = 8  # x_hat: 1, one row sum: 2, dx: 3, dweight: 2


@rule("aten.native_layer_norm")
def layer_norm(op: Op) -> Work:
    """(x[rows,w] - mean) rstd weight + bias -> y, mean[rows], rstd[rows]

    flops    (6 + 1 a weight + 1 a bias) rows w        read x, weight, bias     write y, mean, rstd
    """
    return _norm(op, prod(op.attr("normalized_shape")), LAYER_NORM)


@rule("aten.native_layer_norm_backward")
def layer_norm_backward(op: Op) -> Work:
    """dy, x, mean, rstd, weight -> dx, dweight, dbias

    flops    11 rows w
    """
    x = op.operand("input")
    dims = rows_and_width(x, prod(op.attr("normalized_shape")))
    return vector(op, "norm", LAYER_NORM_BACKWARD * x.numel, dims)


@rule("aten._fused_rms_norm", "aten.rms_norm")
def rms_norm(op: Op) -> Work:
    """x[rows,w] rsqrt(mean(x^2) + eps) weight -> y, rstd[rows]

    flops    (3 + 1 a weight) rows w        read x, weight        write y, rstd
    """
    return _norm(op, prod(op.attr("normalized_shape")), RMS_NORM)


@rule("aten._fused_rms_norm_backward")
def rms_norm_backward(op: Op) -> Work:
    """dy, x, rstd, weight -> dx, dweight

    flops    8 rows w
    """
    x = op.operand("input")
    dims = rows_and_width(x, prod(op.attr("normalized_shape")))
    return vector(op, "norm", RMS_NORM_BACKWARD * x.numel, dims)


@rule("aten.native_group_norm")
def group_norm(op: Op) -> Work:
    """Layer norm over each group of channels: rows = N groups

    flops    (6 + 1 a weight + 1 a bias) |x|
    """
    x = op.operand("input")
    return _norm(op, x.numel // (shape(x)[0] * op.attr("group", 1)), LAYER_NORM)


@rule("aten.native_group_norm_backward")
def group_norm_backward(op: Op) -> Work:
    """dy, x, mean, rstd, weight -> dx, dweight, dbias

    flops    11 |x|
    """
    x = op.operand("input")
    width = x.numel // (shape(x)[0] * op.attr("group", 1))
    return vector(op, "norm", LAYER_NORM_BACKWARD * x.numel, rows_and_width(x, width))


@rule(*aten(BATCH_NORM))
def batch_norm(op: Op) -> Work:
    """(x[N,C,*] - mean[C]) rstd[C] weight[C] + bias[C] -> y, mean, rstd; rows = C

    flops    (6 + 1 a weight + 1 a bias) |x| in training, as `batch_norm_inference` otherwise
    read     x, weight, bias and the running statistics
    write    y, statistics; in training the running ones as well
    """
    if not op.attr("training", op.attr("use_input_stats", True)):
        return batch_norm_inference(op)
    work = _norm(op, _channel_width(op), LAYER_NORM)
    running = sum(v.nbytes for name in ("running_mean", "running_var") for v in listed(op, name))
    return replace(work, bytes_written=work.bytes_written + running)


@rule("aten._native_batch_norm_legit_no_training", "aten._batch_norm_no_update")
def batch_norm_inference(op: Op) -> Work:
    """x[N,C,*] scaled and shifted by the running statistics -> y

    flops    (2 + 1 a weight + 1 a bias) |x|
    """
    return _norm(op, _channel_width(op), 2)


@rule(*aten(BATCH_NORM_BACKWARD))
def batch_norm_backward(op: Op) -> Work:
    """dy, x, statistics, weight -> dx, dweight, dbias

    flops    11 |x|
    """
    return vector(op, "norm", LAYER_NORM_BACKWARD * op.operand("input").numel, _channel_dims(op))


@rule("aten._weight_norm_interface", "aten._weight_norm_interface_backward")
def weight_norm(op: Op) -> Work:
    """v g / |v| -> w, norms; backward: dw, v, g, norms -> dv, dg

    flops    4 |v|, backward 8 |v|
    """
    backward = op.name.startswith("aten._weight_norm_interface_backward")
    return vector(op, "norm", (8 if backward else 4) * op.outputs[0].numel)


def _norm(op: Op, width: int, per_element: int) -> Work:
    x = op.operand("input")
    flops = x.numel * (per_element + AFFINE * (("weight" in op.operands) + ("bias" in op.operands)))
    return vector(op, "norm", flops, rows_and_width(x, width))


def _channel_width(op: Op) -> int:
    x = op.operand("input")
    return x.numel // shape(x)[1] if len(x.shape) > 1 and x.numel else x.numel


def _channel_dims(op: Op) -> tuple[tuple[str, int], ...]:
    return rows_and_width(op.operand("input"), _channel_width(op))
