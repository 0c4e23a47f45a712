"""Gradients of parameters that every tensor-parallel rank holds, summed over the ranks once a step.

Under sequence parallelism each rank makes such a gradient (a norm's, a bias's) from its own slice of the tokens. A
runtime sums them in each backward, or keeps the parts through all micro-batches and sums them at the end, as one.

Source: NVIDIA/Megatron-LM, megatron/core/distributed/finalize_model_grads.py
"""

from __future__ import annotations

from dataclasses import replace

from ..graph.graph import Block, Graph
from ..graph.op import Op
from .local import starred


def put_off(graph: Graph) -> tuple[Graph, frozenset[str]]:
    """(the program without these sums, the first names of the parameters whose gradients wait for theirs)."""
    found: set[str] = set()
    blocks = []
    for block in graph.blocks:
        sums = [op for op in block.ops if _is_sum(op)]
        found.update(block.storages[op.outputs[0].slot].name or "" for op in sums)
        blocks.append(replace(block, ops=tuple(op for op in block.ops if not _is_sum(op))) if sums else block)
    if not found:
        return graph, frozenset()
    names = starred(graph)
    waiting = frozenset(p.names[0] for p in graph.facts.parameters if names.get(p.storage) in found)
    return replace(graph, blocks=tuple[Block, ...](blocks)), waiting


def _is_sum(op: Op) -> bool:
    return op.name == "torchperf.all_reduce" and op.attr("role") == "gradient" and op.attr("axis") == "tp"
