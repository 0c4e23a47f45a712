"""Recurrences along a sequence, and transforms that work along one: RNN layers, selective scans, running maxima, FFT.

A plain `cumsum` is a reduction. A recurrence that a model writes out as many small ops is seen as those ops.
"""

from __future__ import annotations

from math import prod

from torchperf.graph.op import Op
from torchperf.graph.work import Work

from .registry import aten, rule
from .traffic import dtype_of, listed, read, shape, vector, written

SELECTIVE, PER_TOKEN, WKV, GATED = 7, 3, 23, 2  # vector FLOPs of one step, see the rules

CELLS = """
    _thnn_fused_lstm_cell _thnn_fused_lstm_cell_backward _thnn_fused_lstm_cell_backward_impl
    _thnn_fused_gru_cell _thnn_fused_gru_cell_backward _thnn_differentiable_lstm_cell_backward
    _thnn_differentiable_gru_cell_backward"""


def recurrent(op: Op, parameters: int, products: int) -> Work:
    """Every weight of the layer meets every step once: flops = products x 2 x steps x |weights|."""
    x = op.operand("input")
    flops = products * 2 * prod(shape(x)[:-1]) * parameters
    return Work("scan", "matrix", x.dtype, flops, flops, flops, read(op), written(op))


def _matrices(op: Op, name: str = "weight") -> int:
    return sum(value.numel for value in listed(op, name) if len(value.shape) > 1)


@rule("aten._cudnn_rnn", "aten.miopen_rnn", "aten.lstm", "aten.gru", "aten.rnn_tanh", "aten.rnn_relu")
def rnn(op: Op) -> Work:
    """x[T,B,I] and the weights of all layers and directions -> y[T,B,H], states

    flops    2 T B |weight matrices|; the gates' arithmetic is not counted
    """
    return recurrent(op, _matrices(op, "params" if "params" in op.operands else "weight"), 1)


@rule("aten._cudnn_rnn_backward", "aten.miopen_rnn_backward")
def rnn_backward(op: Op) -> Work:
    """dy, x, weights, states -> dx, dh, dw

    flops    4 T B |weight matrices|
    """
    return recurrent(op, _matrices(op), 2)


@rule("aten.mkldnn_rnn_layer")
def mkldnn_rnn(op: Op) -> Work:
    """x[T,B,I], w[4H,I], u[4H,H] -> y[T,B,H], states

    flops    2 T B (|w| + |u|)
    """
    return recurrent(op, op.operand("weight0").numel + op.operand("weight1").numel, 1)


@rule("aten.mkldnn_rnn_layer_backward")
def mkldnn_rnn_backward(op: Op) -> Work:
    """dy, x, w, u, states -> dx, dw, du, dh

    flops    4 T B (|w| + |u|)
    """
    return recurrent(op, op.operand("weight1").numel + op.operand("weight2").numel, 2)


@rule(*aten(CELLS))
def rnn_cell(op: Op) -> Work:
    """Gates from their sums -> next states; the matrix products are ops of their own

    flops    20 per element of the state, rough
    """
    return vector(op, "scan", 20 * op.outputs[0].numel)


def _recurrence(op: Op, forward: int, backward: int, dims: tuple[tuple[str, int], ...]) -> Work:
    """A recurrence that keeps its state on chip: forward's FLOPs, or backward's, which runs forward again for the
    states; that is executed and not in `flops`.
    """
    again = "_backward" in op.name
    flops = backward if again else forward
    dtype = op.inputs[int(again)].dtype
    executed = flops + forward if again else flops
    return Work("scan", "vector", dtype, flops, flops, executed, read(op), written(op), dims)


@rule("torchperf.selective_scan", "torchperf.selective_scan_backward")
def selective_scan(op: Op) -> Work:
    """u, delta, z[B,D,L], A[D,N], B, C[B,N,L] -> y[B,D,L], state[B,D,N]

    flops    7 B D L N (delta A, its exponential, times B u; two for the state, two for C . state) + 3 B D L;
             backward twice that
    ignores  softplus and the gate z; the states that a kernel keeps every few thousand steps
    source   arXiv 2312.00752, algorithm 2 and section 3.3.2: inputs are read once, states never leave the chip
    """
    batch, channels, length = shape(op.operand("u"))
    states = shape(op.operand("A"))[1]
    forward = batch * channels * length * (SELECTIVE * states + PER_TOKEN)
    dims = (("batch", batch), ("channels", channels), ("length", length), ("states", states))
    return _recurrence(op, forward, 2 * forward, dims)


@rule("torchperf.wkv", "torchperf.wkv_backward")
def wkv(op: Op) -> Work:
    """key, value[B,L,D], decay, first[D] -> y[B,L,D], three states[B,D]

    flops    23 B L D: a running softmax and its largest exponent, for the output and for the state; backward twice that
    source   arXiv 2305.13048, equations 19 to 25
    """
    batch, length, channels = shape(op.operand("key"))
    forward = WKV * batch * length * channels
    return _recurrence(op, forward, 2 * forward, (("batch", batch), ("channels", channels), ("length", length)))


@rule("torchperf.gated_recurrence", "torchperf.gated_recurrence_backward")
def gated_recurrence(op: Op) -> Work:
    """h_t = gate_t h_(t-1) + x_t: x, gate[B,L,D] -> h[B,L,D], the last one[B,D]

    flops    2 B L D; backward 3 B L D (dx as forward, dgate one product)
    source   arXiv 2402.19427, section 2.4
    """
    batch, length, channels = shape(op.operand("x"))
    one = batch * length * channels
    dims = (("batch", batch), ("channels", channels), ("length", length))
    return _recurrence(op, GATED * one, (GATED + 1) * one, dims)


@rule(*aten("cummax cummin _cummax_helper _cummin_helper logcumsumexp _logcumsumexp"))
def running(op: Op) -> Work:
    """Running maximum, minimum or log-sum-exp along one dim

    flops    3 |x|        read x        write values (and indices)
    """
    return vector(op, "scan", 3 * op.inputs[0].numel)


@rule("aten._fft_c2c", "aten._fft_r2c", "aten._fft_c2r")
def fft(op: Op) -> Work:
    """Discrete Fourier transform over the dims given, of N points in all

    flops    5 |x| log2 N for complex to complex, half of it where one side is real
    ignores  passes over memory: bytes are a lower bound
    source   the usual 5 N log2 N of a radix-2 transform
    """
    real = "_fft_c2c" not in op.name
    x = op.outputs[0] if "_fft_c2r" in op.name else op.inputs[0]
    dims = shape(x)
    points = prod(dims[d] for d in op.attr("dim", (-1,)))
    flops = 5 * x.numel * max(points - 1, 0).bit_length() // (2 if real else 1)
    return Work("scan", "vector", dtype_of(op), flops, flops, flops, read(op), written(op))
