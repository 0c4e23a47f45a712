"""Tensor and sequence parallelism: a bound graph and a number of ranks -> what each rank runs, and why.

found = tensor_parallel(graph, 8, sequence=True)
found.program          a Graph: local shapes, collectives as ops
print(found.plan)      where each parameter is split
"""

from __future__ import annotations

from dataclasses import dataclass

from ..graph.graph import Graph
from .factors import propagate
from .infer import Inferred, infer
from .local import local_program
from .prepare import prepare


@dataclass(frozen=True, slots=True)
class TensorParallel:
    """`program` is one rank's; `plan` holds the split, its placement and a verdict on every leaf."""

    program: Graph
    plan: Inferred


def tensor_parallel(
    graph: Graph, ranks: int, *, sequence: bool = False, experts: bool = False, strict: bool = True
) -> TensorParallel:
    """Split over `ranks` by the plan that the graph itself suggests; see `infer` for flags and errors."""
    found = infer(prepare(propagate(graph)), ranks, sequence=sequence, experts=experts, strict=strict)
    return TensorParallel(local_program(found.placement), found)
