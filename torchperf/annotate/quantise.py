"""Casts to 8 and 4 bits with their scales, and the pass that finds the largest element."""

from __future__ import annotations

from torchperf.graph.op import Op
from torchperf.graph.work import Work

from .registry import rule
from .traffic import read_except, written

CAST = 3  # scale, clamp, round
BLOCK = 2  # absolute value and maximum, where the scale is found in the same kernel
HADAMARD = 4  # log2 16 additions an element


@rule("torchperf.quantise")
def quantise(op: Op) -> Work:
    """x -> copies of x in few bits, by rows and (`transpose`) by columns, and their scales

    flops    of each copy 3 |x|, and 2 more where scales are not given, 4 more where it is transformed (`hadamard`)
    read     `readings` times x, and the amax        write  the copies and the scales
    kind     pointwise where it can ride on the kernel that makes x: one copy, by rows, whose scale is known or lies
             within a row; else quantise
    """
    x = op.operand("self")
    copies = int(op.attr("rows", True)) + int(op.attr("transpose", False))
    found_here = not op.attr("amax", 0) and op.attr("block", False)
    flops = x.numel * (copies * (CAST + BLOCK * found_here) + HADAMARD * bool(op.attr("hadamard", False)))
    bytes_read = int(op.attr("readings", 1)) * x.nbytes + read_except(op, "self")
    rides = not op.attr("transpose", False) and not op.attr("amax", 0)
    kind = "pointwise" if rides else "quantise"
    return Work(kind, "vector", x.dtype, flops, flops, flops, bytes_read, written(op))


@rule("torchperf.amax")
def amax(op: Op) -> Work:
    """x -> its largest absolute value, one number (one a matrix where there are several)

    flops    2 |x|        read  x        write  the maxima
    kind     pointwise: it rides on the kernel that makes x, as partial maxima
    """
    x = op.operand("self")
    return Work("pointwise", "vector", x.dtype, 2 * x.numel, 2 * x.numel, 2 * x.numel, x.nbytes, written(op))
