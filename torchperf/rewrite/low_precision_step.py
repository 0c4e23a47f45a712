"""What low precision changes around the products: casts that are shared, gathers that carry few bits."""

from __future__ import annotations

from dataclasses import replace

from ..graph.dtype import bits
from ..graph.graph import Block, Graph
from ..graph.op import Op
from .low_precision_recipes import RECIPES
from .precision import Precision


def shared_casts(graph: Graph, micro_batches: int, shards: int) -> Graph:
    """The graph with what a cast of a weight really costs a micro-batch, as the attribute `load` (a share of its time).

    once     a kept weight is cast in the first micro-batch alone, and not again in a recompute
    shards   a weight that is gathered in the low precision is cast on the shard: each of `shards` ranks does its part
    """
    blocks = []
    for block in graph.blocks:
        ops = []
        for op in block.ops:
            if once_a_step(op):
                if block.phase != "recompute":
                    ops.append(replace(op, attrs=(*op.attrs, ("load", 1 / micro_batches))))
            elif shards > 1 and op.attr("operand") == "weight":
                ops.append(replace(op, attrs=(*op.attrs, ("load", 1 / shards))))
            else:
                ops.append(op)
        blocks.append(replace(block, ops=tuple(ops)))
    return replace(graph, blocks=tuple(blocks))


def narrow_gathers(graph: Graph, to: Precision) -> Graph:
    """The graph whose tensor-parallel gathers carry the low precision, as a share `load` of their time.

    Transformer Engine casts a rank's slice and gathers that, where the product alone reads it; torchao gathers 16 bits.
    """
    recipe = RECIPES[to.linear] if to.linear else None
    if recipe is None or recipe.saved != "quantised":
        return graph
    share = bits(recipe.forward) / bits(to.compute)
    return replace(graph, blocks=tuple(_narrowed(block, share) for block in graph.blocks))


def _narrowed(block: Block, share: float) -> Block:
    readers: dict[int, set[bool]] = {}
    for op in block.ops:
        slots = {value.slot for value in op.inputs}
        if not (op.outputs and all(value.slot in slots for value in op.outputs)):  # no view
            for slot in slots:
                readers.setdefault(slot, set()).add(op.name.startswith(("torchperf.quantise", "torchperf.amax")))
    ops = [
        replace(op, attrs=(*op.attrs, ("load", share)))
        if op.name == "torchperf.all_gather" and op.attr("axis") == "tp" and readers.get(op.outputs[0].slot) == {True}
        else op
        for op in block.ops
    ]
    return replace(block, ops=tuple(ops))


def once_a_step(op: Op) -> bool:
    """Whether an op of forward runs in the first micro-batch of a step alone: the cast of a weight that is kept."""
    parts = op.parts or (op,)
    return all(part.attr("once") == "step" for part in parts)
