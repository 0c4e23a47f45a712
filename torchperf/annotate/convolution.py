"""Convolutions as matrix products: m = positions, n = output channels, k = input channels x kernel."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from torchperf.graph.op import Op
from torchperf.graph.tensor import Value
from torchperf.graph.work import Work

from .registry import aten, rule
from .traffic import read, shape, written

# the input is called `input` or `self`
FORWARD = """
    _slow_conv2d_forward slow_conv3d_forward slow_conv3d thnn_conv2d slow_conv_dilated2d
    slow_conv_dilated3d mkldnn_convolution cudnn_convolution cudnn_convolution_relu
    cudnn_convolution_add_relu miopen_convolution miopen_convolution_relu
    miopen_convolution_add_relu miopen_depthwise_convolution conv_depthwise3d _conv_depthwise2d
    _nnpack_spatial_convolution _mps_convolution conv1d conv2d conv3d"""
TRANSPOSED = """
    cudnn_convolution_transpose miopen_convolution_transpose slow_conv_transpose2d
    slow_conv_transpose3d conv_transpose1d conv_transpose2d conv_transpose3d"""


def implicit_gemm(op: Op, x: Value, w: Value, y: Value, transposed: bool, products: int = 1) -> Work:
    """x[N,C,*in], w, y[N,K,*out]: w is [K,C/g,*kernel], or [C,K/g,*kernel] where transposed.

    Every weight meets every position of y once (of x where transposed): flops = 2 N |positions| |w|.
    `products` is how many such products the op makes.
    """
    rank = len(w.shape) - 2
    positions = shape(x if transposed else y)
    m = prod(positions[: -rank - 1]) * prod(positions[-rank:])
    rows, columns, *kernel = shape(w)
    groups = shape(y if transposed else x)[-rank - 1] // columns
    channels = rows // groups  # of one group: output channels, or input channels where transposed
    n, k = (columns * prod(kernel), channels) if transposed else (channels, columns * prod(kernel))
    flops = products * 2 * m * w.numel
    dims = (("batch", products * groups), ("m", m), ("n", n), ("k", k))
    equation = "bmk,bkn->bmn"
    return Work("convolution", "matrix", x.dtype, flops, flops, flops, read(op), written(op), dims, equation)


@rule("aten.convolution", "aten._convolution", "aten.convolution_overrideable")
def convolution(op: Op) -> Work:
    """x[N,C,*in] * w[K,C/g,*kernel] -> y[N,K,*out], in 1, 2 or 3 dims, transposed or not, in g groups

    flops    2 N |out| K (C/g) |kernel|; transposed: 2 N |in| C (K/g) |kernel|
    ignores  padding (its zeros are counted), Winograd and FFT kernels
    source   agrees with torch.utils.flop_counter
    """
    transposed = bool(op.attr("transposed", False))
    return implicit_gemm(op, op.operand("input"), op.operand("weight"), op.outputs[0], transposed)


@rule(*aten(FORWARD))
def plain_convolution(op: Op) -> Work:
    """x[N,C,*in] * w[K,C/g,*kernel] -> y[N,K,*out]

    flops    2 N |out| K (C/g) |kernel|
    """
    return implicit_gemm(op, op.inputs[0], op.operand("weight"), op.outputs[0], False)


@rule(*aten(TRANSPOSED))
def transposed_convolution(op: Op) -> Work:
    """x[N,C,*in] * w[C,K/g,*kernel] -> y[N,K,*out]

    flops    2 N |in| C (K/g) |kernel|
    """
    return implicit_gemm(op, op.inputs[0], op.operand("weight"), op.outputs[0], True)


@rule("aten.convolution_backward", "aten.convolution_backward_overrideable", "aten._slow_conv2d_backward")
def convolution_backward(op: Op) -> Work:
    """dy, x, w -> dx, dw, db, each where output_mask asks for it

    flops    those of the forward for dx, as many for dw; db is a sum and not counted
    read     dy, w where dx is asked for, x where dw is
    """
    x = op.find("input") or op.operand("self")
    wants_x, wants_w, _ = op.attr("output_mask", (True, True, True))
    transposed = bool(op.attr("transposed", False))
    products = int(wants_x) + int(wants_w)
    weight = op.operand("weight")
    work = implicit_gemm(op, x, weight, op.operand("grad_output"), transposed, products)
    unread = (0 if wants_x else weight.nbytes) + (0 if wants_w else x.nbytes)
    return replace(work, bytes_read=work.bytes_read - unread) if unread else work
