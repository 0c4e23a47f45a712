"""Which parameters may be gathered in few bits."""

from __future__ import annotations

from ..graph.graph import Graph


def quantised(graph: Graph) -> frozenset[int]:
    """Storages of the parameters that low-precision products read; embedding, norms and head are gathered as they are.

    Source: pytorch/ao, torchao/float8/fsdp_utils.py: the weights of Float8Linear alone are cast before the all-gather
    """
    read = [
        {
            v.slot
            for op in block.ops
            for part in (op.parts or (op,))
            if part.attr("operand") == "weight"
            for v in part.inputs
            if block.storages[v.slot].kind == "param"
        }
        for block in graph.blocks
    ]
    return frozenset(segment.storages[slot] for segment in graph.segments for slot in read[segment.block])
