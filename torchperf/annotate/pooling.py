"""Pooling and resampling of images and sequences."""

from __future__ import annotations

from math import prod

from torchperf.graph.op import Op
from torchperf.graph.work import Work

from .registry import aten, rule
from .traffic import moved, read, read_except, vector, written

WINDOWS = """
    max_pool1d max_pool1d_with_indices max_pool2d max_pool2d_with_indices max_pool3d
    max_pool3d_with_indices avg_pool1d avg_pool2d avg_pool3d mkldnn_max_pool2d mkldnn_max_pool3d
    fractional_max_pool2d fractional_max_pool3d"""
AVERAGE_BACKWARD = "avg_pool2d_backward avg_pool3d_backward"
ADAPTIVE = """
    _adaptive_avg_pool2d _adaptive_avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d
    adaptive_avg_pool3d adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d
    mkldnn_adaptive_avg_pool2d"""
ADAPTIVE_BACKWARD = """
    _adaptive_avg_pool2d_backward _adaptive_avg_pool3d_backward adaptive_avg_pool3d_backward
    mkldnn_adaptive_avg_pool2d_backward"""
MAX_BACKWARD = """
    max_pool2d_with_indices_backward max_pool3d_with_indices_backward adaptive_max_pool2d_backward
    adaptive_max_pool3d_backward fractional_max_pool2d_backward fractional_max_pool3d_backward
    max_unpool2d max_unpool3d"""
# FLOPs per element of the result: two for each neighbour that is weighed
RESAMPLING = {
    0: """
        upsample_nearest1d upsample_nearest2d upsample_nearest3d _upsample_nearest_exact1d
        _upsample_nearest_exact2d _upsample_nearest_exact3d""",
    2: """
        upsample_nearest1d_backward upsample_nearest2d_backward upsample_nearest3d_backward
        _upsample_nearest_exact1d_backward _upsample_nearest_exact2d_backward
        _upsample_nearest_exact3d_backward""",
    4: "upsample_linear1d upsample_linear1d_backward",
    8: """
        upsample_bilinear2d upsample_bilinear2d_backward _upsample_bilinear2d_aa
        _upsample_bilinear2d_aa_backward grid_sampler_2d_backward""",
    16: "upsample_trilinear3d upsample_trilinear3d_backward grid_sampler_3d_backward",
    32: """
        upsample_bicubic2d upsample_bicubic2d_backward _upsample_bicubic2d_aa
        _upsample_bicubic2d_aa_backward _upsample_lanczos2d_aa _upsample_lanczos2d_aa_backward""",
}


@rule(*aten(WINDOWS))
def pool(op: Op) -> Work:
    """The maximum or mean of each window of K elements

    flops    K |y|        read x once        write y, and the indices of maxima
    """
    return vector(op, "pooling", op.outputs[0].numel * prod(op.attr("kernel_size")))


@rule(*aten(AVERAGE_BACKWARD))
def average_pool_backward(op: Op) -> Work:
    """dy spread over each window of K elements -> dx

    flops    K |dy|        read dy (x is named but not read)        write dx
    """
    flops = op.operand("grad_output").numel * prod(op.attr("kernel_size"))
    return moved(op, "pooling", read_except(op, "self"), written(op), flops)


@rule(*aten(ADAPTIVE))
def adaptive_pool(op: Op) -> Work:
    """Pooling to a given size: each element is seen once

    flops    |x|        read x        write y
    """
    return vector(op, "pooling", op.operand("self").numel)


@rule(*aten(ADAPTIVE_BACKWARD))
def adaptive_pool_backward(op: Op) -> Work:
    """dy spread over each window -> dx

    flops    |dx|        read dy (x is named but not read)        write dx
    """
    return moved(op, "pooling", read_except(op, "self"), written(op), op.outputs[0].numel)


@rule(*aten(MAX_BACKWARD))
def max_pool_backward(op: Op) -> Work:
    """dy put back at the indices of the maxima -> dx, elsewhere zero

    flops    |dy|        read dy and indices (x is named but not read)        write dx
    """
    unread = () if "unpool" in op.name else ("self",)
    return moved(op, "pooling", read_except(op, *unread), written(op), op.inputs[0].numel)


def _resampling(per_element: int) -> None:
    @rule(*aten(RESAMPLING[per_element]))
    def resample(op: Op) -> Work:
        """x interpolated to another size, and its backward

        flops    2 x the neighbours weighed x |y| (backward: |dy|)
        read     the input
        write    the result
        """
        numel = max(op.inputs[0].numel, op.outputs[0].numel)
        return moved(op, "pooling", read(op), written(op), per_element * numel)


for _count in RESAMPLING:
    _resampling(_count)
