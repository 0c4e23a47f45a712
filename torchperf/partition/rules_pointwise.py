"""Elementwise work, by an allow-list: an unknown op is never taken for elementwise.

What a sum still to be done (Partial) may pass is a second allow-list: x + y, -x, c x, x * y, x / y. A scalar that is
added is affine, not linear.
"""

from __future__ import annotations

from .algebra import Dims, fresh
from .rules import rule
from .step import ADDITIVE, LINEAR, PRODUCT, Step

UNARY = (
    "abs", "acos", "angle", "asin", "atan", "bitwise_not", "ceil", "celu", "clamp", "clamp_max", "clamp_min", "cos",
    "cosh", "elu", "erf", "erfc", "erfinv", "exp", "exp2", "expm1", "floor", "frac", "gelu", "hardsigmoid",
    "hardswish", "hardtanh", "isfinite", "isinf", "isnan", "leaky_relu", "log", "log10", "log1p", "log2",
    "log_sigmoid_forward", "logical_not", "mish", "pow", "prelu", "reciprocal", "relu", "relu6", "round", "rsqrt",
    "selu", "sgn", "sigmoid", "sign", "silu", "sin", "sinh", "softplus", "sqrt", "square", "tan", "tanh", "trunc",
)  # fmt: skip
MANY = (
    "addcdiv", "addcmul", "atan2", "bitwise_and", "bitwise_or", "bitwise_xor", "elu_backward", "eq", "floor_divide",
    "fmod", "ge", "gelu_backward", "gt", "hardsigmoid_backward", "hardswish_backward", "hardtanh_backward", "hypot",
    "le", "leaky_relu_backward", "lerp", "log_sigmoid_backward", "logical_and", "logical_or", "logical_xor", "lt",
    "masked_fill", "maximum", "minimum", "mish_backward", "native_dropout_backward", "ne", "nextafter", "remainder",
    "sigmoid_backward", "silu_backward", "softplus_backward", "tanh_backward", "threshold_backward", "where",
    "xlogy", "rsub", "threshold", "polar", "complex",
    "__and__", "__or__", "__xor__", "__lshift__", "__rshift__", "bitwise_left_shift",
)  # fmt: skip
IN_PLACE = tuple(f"{name}_" for name in (*UNARY, *MANY))
CREATE = (
    "arange", "bernoulli", "bernoulli_", "empty", "empty_like", "empty_strided", "exponential_", "eye", "fill",
    "fill_", "full", "full_like", "linspace", "new_empty", "new_empty_strided", "new_full", "new_ones", "new_zeros",
    "normal_", "ones", "ones_like", "rand", "rand_like", "randint", "randn", "randn_like", "scalar_tensor", "tensor",
    "tril_", "uniform_", "zero_", "zeros", "zeros_like",
)  # fmt: skip


def _elementwise(step: Step) -> Dims:
    shape = step.out_shape()
    dims = step.broadcast([i for i in range(len(step.op.inputs)) if len(step.shape(i)) <= len(shape)], shape)
    for j in range(len(step.op.outputs)):
        step.put(j, dims if step.out_shape(j) == shape else step.fresh(step.out_shape(j)))
        if step.out_shape(j) not in (shape, (), (0,)):
            step.facts.known = False
    return dims


@rule(*UNARY, *MANY, *IN_PLACE)
def pointwise(step: Step) -> None:
    _elementwise(step)


@rule("neg", "neg_", "conj", "_conj")
def negate(step: Step) -> None:
    _elementwise(step)
    step.facts.linear, step.facts.through = LINEAR, (0,)


@rule("add", "add_", "sub", "sub_")
def add(step: Step) -> None:
    """Linear in both tensors together; x + scalar is affine."""
    _elementwise(step)
    if len(step.op.inputs) == 2:
        step.facts.linear, step.facts.through = ADDITIVE, (0, 1)
    elif step.op.attr("other", 1) == 0:
        step.facts.linear, step.facts.through = LINEAR, (0,)


@rule("mul", "mul_")
def multiply(step: Step) -> None:
    _elementwise(step)
    one = len(step.op.inputs) == 1
    step.facts.linear, step.facts.through = (LINEAR, (0,)) if one else (PRODUCT, (0, 1))


@rule("div", "div_", "true_divide")
def divide(step: Step) -> None:
    _elementwise(step)
    if step.op.attr("rounding_mode") is None:
        one = len(step.op.inputs) == 1
        step.facts.linear, step.facts.through = (LINEAR, (0,)) if one else (PRODUCT, (0,))


@rule("copy_", "copy")
def copy(step: Step) -> None:
    _elementwise(step)


@rule("native_dropout", "dropout")
def dropout(step: Step) -> None:
    _elementwise(step)


@rule("tril", "triu")
def triangle(step: Step) -> None:
    """Zero by position: linear, and the two last dims keep their factors."""
    step.put(0, step.dims(0))
    step.facts.linear, step.facts.through = PRODUCT, (0,)
    step.facts.opaque += step.dims(0)[-2:]


@rule(*CREATE)
def create(step: Step) -> None:
    """Made from nothing: like an input of the same shape where there is one, else factors of its own."""
    step.facts.kind = "create"
    for j in range(len(step.op.outputs)):
        shape = step.out_shape(j)
        alike = [i for i in range(len(step.op.inputs)) if step.shape(i) == shape]
        if alike:
            step.put(j, step.dims(alike[0]))
        elif step.op.inputs and len(step.shape(0)) == len(shape) and step.op.name.startswith("aten.new_"):
            kept = [d if n == m else fresh(n) for d, n, m in zip(step.dims(0), shape, step.shape(0), strict=True)]
            step.put(j, kept)
        else:
            step.put(j, step.fresh(shape))
