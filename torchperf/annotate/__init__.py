"""Work of each op: named dims, FLOPs, bytes and engine. One file an operator family; no torch.

`work(op)` is the one call. A new operator is one function in its family's file, or one word in that
file's table:

    @rule("aten.mm")
    def mm(op: Op) -> Work: ...

Vector FLOPs are rough (see pointwise.py): they feed the roofline of the vector engine, and never an MFU.
"""

from torchperf.graph.graph import Graph
from torchperf.graph.work import Works

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
    quantise,
    reduction,
    scan,
    scatter,
    softmax,
    view,
)
from .registry import KINDS, RULES, rule, work

__all__ = ["KINDS", "RULES", "rule", "work", "works"]


def works(graph: Graph) -> Works:
    """The work of every stored op of a bound graph, block by block."""
    return tuple(tuple(work(op) for op in block.ops) for block in graph.blocks)


_FAMILIES = (
    attention, collective, convolution, dropout, fused, linalg, matmul, movement, normalization, optimizer, pointwise,
    pooling, quantise, reduction, scan, scatter, softmax, view,
)  # fmt: skip
