"""Tensor and sequence parallelism: a bound graph and a number of ranks -> what each rank runs, and why.

found = tensor_parallel(graph, 8, sequence=True)
found.program          a Graph: local shapes, collectives as ops
print(found.plan)      where each parameter is split
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..graph.graph import Graph
from .factors import propagate
from .given import given
from .infer import Inferred, infer
from .local import local_program
from .prepare import prepare


@dataclass(frozen=True, slots=True)
class TensorParallel:
    """`program` is one rank's; `plan` holds the split, its placement and a verdict on every leaf."""

    program: Graph
    plan: Inferred


def tensor_parallel(
    graph: Graph, ranks: int, *, sequence: bool = False, experts: bool = False, strict: bool = True,
    plan: Mapping[str, str] | None = None, regather: bool = True, norm_gradients: bool = True,
) -> TensorParallel:  # fmt: skip
    """Split over `ranks`; see `infer` and `given` for flags and errors.

    plan            {module or parameter, `*` for the layer: style}; without it the graph itself suggests one
    regather        backward gathers its input again for dW (Megatron); else what forward gathered is kept (DTensor)
    norm_gradients  gradients of parameters that every rank holds are summed over the ranks; else they stay Partial
    """
    prepared = prepare(propagate(graph))
    if plan is None:
        found = infer(
            prepared, ranks, sequence=sequence, experts=experts, strict=strict, regather=regather,
            norm_gradients=norm_gradients,
        )  # fmt: skip
    else:
        found = given(
            prepared, ranks, plan, sequence=sequence, regather=regather, norm_gradients=norm_gradients
        )  # fmt: skip
    return TensorParallel(local_program(found.placement), found)
