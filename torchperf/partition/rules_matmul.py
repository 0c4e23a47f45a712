"""Contractions: matrix products, grouped products of experts, convolutions."""

from __future__ import annotations

from .algebra import Dim
from .rules import rule
from .step import PRODUCT, Step


def _product(step: Step, *through: int) -> None:
    step.facts.kind = "matmul"
    step.facts.linear = PRODUCT
    step.facts.through = through


@rule("mm", "bmm", "addmm", "baddbmm", "matmul", "dot", "mv")
def mm(step: Step) -> None:
    """a[.., m, k] b[.., k, n] -> [.., m, n], k contracted; a bias that is added belongs to the output's dims."""
    b = len(step.op.inputs) - 1
    a = b - 1
    _product(step, a, b)
    left, right = step.dims(a), step.dims(b)
    for x, y in zip(left[:-2], right[:-2], strict=False):
        step.same(x, y)
    inner = right[-2] if len(right) > 1 else right[-1]
    step.same(left[-1], inner)
    out = [*left[:-1], *(right[-1:] if len(right) > 1 else [])]
    step.put(0, out, [left[-1]])
    if a == 1:  # the bias
        step.facts.through = ()
        bias, shape = step.dims(0), step.out_shape()
        for j in range(1, len(bias) + 1):
            if step.shape(0)[-j] == shape[-j] != 1:
                step.same(bias[-j], out[-j])


@rule("_grouped_mm", "_scaled_grouped_mm")
def grouped_mm(step: Step) -> None:
    """Rows sorted by expert. [rows, k] x [experts, k, n] -> [rows, n]; [m, rows] x [rows, n] -> [experts, m, n].

    Where rows end is known on every rank: `offs` is not tied to the experts. Forward, experts are contracted in the
    sense that a row meets one of them: an expert's owner has only its rows.
    """
    _product(step)
    left, right = step.dims(0), step.dims(1)
    if len(left) == 2 and len(right) == 3:
        step.same(left[1], right[1])
        step.put(0, [left[0], right[2]], [left[1]])
        step.facts.ragged = right[0]
        _tie(step, right[0])
        step.hint(right[0], "experts")
    elif len(left) == 2:
        step.same(left[1], right[0])
        experts = step.fresh([step.out_shape()[0]])[0]
        step.put(0, [experts, left[0], right[1]], [left[1]])
        step.facts.ragged = experts
        _tie(step, experts)
    else:
        step.same(left[0], right[0])
        step.same(left[-1], right[-2])
        step.put(0, [left[0], left[-2], right[-1]], [left[-1]])


def _tie(step: Step, experts: Dim) -> None:
    """Products that share the ends of rows share their experts, though the ends themselves stay whole."""
    i = step.index("offs")
    if i is not None:
        step.tie(i, experts)


@rule("convolution")
def convolution(step: Step) -> None:
    """x[b, c, ..] w[o, c, ..] -> [b, o, ..]; positions get factors of their own, windows overlap."""
    _product(step)
    x, w = step.dims(0), step.dims(1)
    plain = step.op.attr("groups", 1) == 1 and not step.op.attr("transposed", False)
    spatial = step.fresh(step.out_shape()[2:])
    step.facts.opaque += x[2:] + w[2:]
    if plain:
        step.same(x[1], w[1])
        step.put(0, [x[0], w[0], *spatial], [x[1]])
        bias = step.of("bias")
        if bias is not None:
            step.same(bias[0], w[0])
    elif step.shape(1)[1] == 1 and step.shape(0)[1] == step.out_shape()[1]:  # depthwise: one filter a channel
        step.same(x[1], w[0])
        step.put(0, [x[0], w[0], *spatial])
        bias = step.of("bias")
        if bias is not None:
            step.same(bias[0], w[0])
    else:
        step.facts.opaque += [x[1], w[0], w[1]]
        step.put(0, [x[0], step.fresh([step.out_shape()[1]])[0], *spatial])


@rule("convolution_backward")
def convolution_backward(step: Step) -> None:
    """Outputs are those of (input, weight, bias) that `output_mask` asks for."""
    _product(step)
    g, x, w = step.dims(0), step.dims(1), step.dims(2)
    mask = step.op.attr("output_mask", (True, True, True))
    plain = step.op.attr("groups", 1) == 1 and not step.op.attr("transposed", False)
    step.facts.opaque += g[2:]  # a window of x belongs to each position
    depthwise = not plain and step.shape(2)[1] == 1 and step.shape(0)[1] == step.shape(1)[1]
    step.facts.opaque += x[2:] + w[2:]
    if plain or depthwise:
        step.same(g[1], w[0])
        step.same(x[1], w[0] if depthwise else w[1])
    else:
        step.facts.opaque += [x[1], w[0], w[1], g[1]]
    step.same(g[0], x[0])
    results = [(x, [w[0]] if plain else []), (w, [g[0], *g[2:]]), ([w[0]], [g[0], *g[2:]])]
    wanted = [result for result, on in zip(results, mask, strict=False) if on]
    shapes = [step.shape(1), step.shape(2), (step.shape(2)[0],)]
    if len(wanted) != len(step.op.outputs):  # outputs that were not asked for are listed too
        wanted = [results[shapes.index(step.out_shape(j))] for j in range(len(step.op.outputs))]
    for j, (dims, contracted) in enumerate(wanted):
        step.put(j, dims, contracted)
