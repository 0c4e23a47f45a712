"""Work of each op: named dims, FLOPs, bytes and engine. One file an operator family; no torch.

`work(op)` is the one call. A new operator is one function in its family's file, or one word in that
file's table:

    @rule("aten.mm")
    def mm(op: Op) -> Work: ...

Vector FLOPs are rough (see pointwise.py): they feed the roofline of the vector engine, and never an MFU.
"""

from . import (
    attention,
    collective,
    convolution,
    dropout,
    fused,
    linalg,
    matmul,
    movement,
    normalization,
    optimizer,
    pointwise,
    pooling,
    reduction,
    scan,
    scatter,
    softmax,
    view,
)
from .registry import KINDS, RULES, rule, work

__all__ = ["KINDS", "RULES", "rule", "work"]

_FAMILIES = (
    attention, collective, convolution, dropout, fused, linalg, matmul, movement, normalization, optimizer, pointwise,
    pooling, reduction, scan, scatter, softmax, view,
)  # fmt: skip
