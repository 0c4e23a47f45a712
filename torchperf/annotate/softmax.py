"""Softmax, log-softmax and the losses that follow them."""

from __future__ import annotations

from torchperf.graph.op import Op
from torchperf.graph.tensor import Value
from torchperf.graph.work import Work

from .registry import aten, rule
from .traffic import moved, part, read, read_except, rows_and_width, shape, vector, written

SOFTMAX = 5  # max, subtract, exp, sum, divide (or subtract the log)
SOFTMAX_BACKWARD = 4  # multiply, sum, subtract, multiply
LOSSES = {
    "mse_loss": 3, "mse_loss_backward": 3, "smooth_l1_loss": 5, "smooth_l1_loss_backward": 5,
    "huber_loss": 5, "huber_loss_backward": 5, "binary_cross_entropy": 6, "binary_cross_entropy_backward": 5,
    "binary_cross_entropy_with_logits": 6,
    "soft_margin_loss": 4, "soft_margin_loss_backward": 4, "multi_margin_loss": 4,
    "multi_margin_loss_backward": 4, "multilabel_margin_loss_forward": 4,
    "multilabel_margin_loss_backward": 4,
}  # fmt: skip


def _rows(op: Op, value: Value) -> tuple[tuple[str, int], ...]:
    dims, dim = shape(value), op.attr("dim", -1)
    return rows_and_width(value, dims[dim] if dims and isinstance(dim, int) else value.numel)


@rule(*aten("_softmax _safe_softmax _log_softmax softmax log_softmax _masked_softmax"))
def softmax(op: Op) -> Work:
    """exp(x - max) / sum(exp(x - max)) over one dim of width w -> y

    flops    5 |x|        read x, mask        write y
    """
    x = op.operand("self")
    return vector(op, "softmax", SOFTMAX * x.numel, _rows(op, x))


@rule(*aten("_softmax_backward_data _log_softmax_backward_data _masked_softmax_backward"))
def softmax_backward(op: Op) -> Work:
    """dy, y -> dx = (dy - sum(dy y)) y; for log-softmax dy - exp(y) sum(dy)

    flops    4 |y|        read dy, y        write dx
    """
    y = op.operand("output")
    return vector(op, "softmax", SOFTMAX_BACKWARD * y.numel, _rows(op, y))


@rule("aten.logsumexp")
def logsumexp(op: Op) -> Work:
    """max + log(sum(exp(x - max))) over the dims given

    flops    4 |x|        read x        write one element a row
    """
    return vector(op, "softmax", 4 * op.operand("self").numel)


@rule("aten.nll_loss_forward", "aten.nll_loss2d_forward")
def nll_loss(op: Op) -> Work:
    """-x[row, target[row]] summed or averaged -> loss, total weight

    flops    2 rows        read the targets and one element of x a row (not the whole of x)
    """
    x, target = op.operand("self"), op.operand("target")
    bytes_read = read_except(op, "self") + part(x, target.numel)
    return moved(op, "loss", bytes_read, written(op), 2 * target.numel)


@rule("aten.nll_loss_backward", "aten.nll_loss2d_backward")
def nll_loss_backward(op: Op) -> Work:
    """dloss, target -> dx[rows,classes], zero but for one element a row

    flops    rows        read dloss, target, weights (x is named but not read)        write the whole of dx
    """
    return moved(op, "loss", read_except(op, "self"), written(op), op.operand("target").numel)


@rule("aten.cross_entropy_loss")
def cross_entropy(op: Op) -> Work:
    """log-softmax and nll-loss in one op

    flops    5 |x| + 2 rows        read x, target        write loss
    """
    x, target = op.operand("self"), op.operand("target")
    return moved(op, "loss", read(op), written(op), SOFTMAX * x.numel + 2 * target.numel)


@rule(*aten(LOSSES))
def elementwise_loss(op: Op) -> Work:
    """A loss of two tensors, element by element, then summed; and its backward

    flops    LOSSES[name] |x|        read both (and dloss)        write the loss, or dx
    """
    return vector(op, "loss", LOSSES[op.name.split(".")[1]] * op.operand("self").numel)


@rule("aten._ctc_loss", "aten._ctc_loss_backward", "aten._cudnn_ctc_loss")
def ctc_loss(op: Op) -> Work:
    """Connectionist temporal classification: log_probs[T,N,C], targets -> loss[N], alpha[N,T,2L+1]

    flops    6 |log_probs| + 6 per cell of alpha, rough
    """
    cells = op.outputs[-1].numel if len(op.outputs) > 1 else 0
    return vector(op, "loss", 6 * (op.operand("log_probs").numel + cells))
