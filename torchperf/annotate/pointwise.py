"""Element by element ops, as a table of FLOPs per element of the result.

One FLOP each for add, multiply, compare, select, and for exp, log, erf, tanh, sqrt, sin and the like, which
cost more on a real vector unit: the table is for the roofline of the vector engine, where bytes almost always
decide. In-place twins (`add_`) and list twins (`_foreach_add_`) follow their base.
"""

from __future__ import annotations

from torchperf.graph.op import Op
from torchperf.graph.work import Work

from .registry import Rule, aten, rule
from .traffic import dtype_of, listed, read, written

PER_ELEMENT: dict[int, str] = {
    1: """
        add sub mul div rsub true_divide floor_divide multiply subtract divide remainder fmod
        reciprocal neg negative abs absolute sign sgn signbit ceil floor round trunc frac fix square
        sqrt rsqrt exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh
        asinh acosh atanh erf erfc erfinv lgamma digamma polygamma i0 pow float_power atan2 arctan2
        hypot copysign nextafter ldexp xlogy gcd lcm heaviside fmax fmin maximum minimum clamp
        clamp_min clamp_max clip relu relu6 hardtanh hardtanh_backward threshold threshold_backward
        leaky_relu leaky_relu_backward where masked_fill eq ne lt le gt ge greater greater_equal
        less less_equal not_equal equal isnan isinf isfinite isposinf isneginf isreal isclose isin
        logical_and logical_or logical_not logical_xor bitwise_and bitwise_or bitwise_not
        bitwise_xor bitwise_left_shift bitwise_right_shift __and__ __or__ __xor__ __lshift__
        __rshift__ __iand__ __ior__ __ixor__ _to_copy deg2rad rad2deg nan_to_num conj_physical
        _conj_physical angle complex positive outer ger hardshrink softshrink hardshrink_backward
        softshrink_backward _saturate_weight_to_fp16 dequantize _masked_scale special_entr
        special_erfcx special_i0e special_i1 special_i1e special_ndtri special_log_ndtr special_zeta
        special_xlog1py""",
    2: """
        addcmul addcdiv polar addr rrelu_with_noise mvlgamma igamma igammac _add_relu frexp _grad_sum_to_size
        prelu""",
    3: """
        lerp sigmoid sigmoid_backward tanh_backward hardsigmoid hardsigmoid_backward elu selu celu
        elu_backward logaddexp logaddexp2 logit logit_backward sinc quantize_per_tensor
        quantize_per_channel _prelu_kernel _prelu_kernel_backward rrelu_with_noise_backward
        linalg_cross cross""",
    4: """
        silu hardswish hardswish_backward softplus softplus_backward log_sigmoid log_sigmoid_forward
        log_sigmoid_backward glu fake_quantize_per_tensor_affine
        fake_quantize_per_tensor_affine_cachemask fake_quantize_per_channel_affine_cachemask""",
    5: "gelu",
    6: "mish glu_backward",
    8: "silu_backward",
    10: "gelu_backward mish_backward",
}  # `gelu`: its erf form; the tanh form, of 9, is counted the same
LISTS = """
    abs acos add addcdiv addcmul asin atan ceil clamp_max clamp_min cos cosh div erf erfc exp expm1
    floor frac lerp lgamma log log10 log1p log2 maximum minimum mul neg pow reciprocal round rsqrt
    sigmoid sign sin sinh sqrt sub tan tanh trunc"""


def elementwise(per_element: int) -> Rule:
    """The rule of a table row."""

    def elementwise_rule(op: Op) -> Work:
        """y[i] = f(x[i], ...), operands broadcast

        flops    per_element |y|        read each distinct operand, an expanded one once        write y
        """
        outputs = op.outputs
        flops = per_element * (outputs[0].numel if outputs else op.inputs[0].numel)
        return Work("pointwise", "vector", dtype_of(op), flops, flops, flops, read(op), written(op))

    return elementwise_rule


def elementwise_list(per_element: int) -> Rule:
    """The rule of a `_foreach` op."""

    def elementwise_list_rule(op: Op) -> Work:
        """As `elementwise`, over each tensor of the list `self`

        flops    per_element x the sum of |self|
        """
        numel = sum(value.numel for value in listed(op, "self"))
        flops = per_element * numel
        return Work("pointwise", "vector", dtype_of(op), flops, flops, flops, read(op), written(op))

    return elementwise_list_rule


_COUNT = {name: count for count, names in PER_ELEMENT.items() for name in names.split()}
for _count, _names in PER_ELEMENT.items():
    rule(*aten(_names))(elementwise(_count))
for _name in LISTS.split():
    rule(f"aten._foreach_{_name}")(elementwise_list(_COUNT[_name]))
rule("aten.max.other", "aten.min.other")(elementwise(1))
