"""Tensor and sequence parallelism: a bound graph and a number of ranks -> what each rank runs, and why.

found = tensor_parallel(graph, 8, sequence=True)
found.program          a Graph: local shapes, collectives as ops
print(found.plan)      where each parameter is split
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..graph.errors import TorchperfError
from ..graph.graph import Graph
from .expert_local import find_local, first_names
from .factors import propagate
from .given import given
from .infer import Inferred, infer
from .local import local_program
from .prepare import prepare


@dataclass(frozen=True, slots=True)
class TensorParallel:
    """`program` is one rank's; `plan` holds the split, its placement and a verdict on every leaf.

    experts   first names of the parameters of experts that were to be left whole
    """

    program: Graph
    plan: Inferred
    experts: frozenset[str] = frozenset()


def tensor_parallel(
    graph: Graph, ranks: int, *, sequence: bool = False, experts: bool = False, strict: bool = True,
    plan: Mapping[str, str] | None = None, regather: bool = True, norm_gradients: bool = True,
    local_experts: bool = False,
) -> TensorParallel:  # fmt: skip
    """Split over `ranks`; see `infer` and `given` for flags and errors.

    plan            {module or parameter, `*` for the layer: style}; without it the graph itself suggests one
    regather        backward gathers its input again for dW (Megatron); else what forward gathered is kept (DTensor)
    norm_gradients  gradients of parameters that every rank holds are summed over the ranks; else they stay Partial
    local_experts   experts are not split, each rank routes its own slice of the sequence; raises TorchperfError without
                    `sequence`, as Megatron-LM does, and where the model has no experts
    """
    if local_experts and not sequence:
        raise TorchperfError(
            "experts that are not split need the tokens split among the ranks",
            facts=[("flag", "--expert-tp 1")],
            hint="give `--sequence-parallel`",
        )
    prepared = prepare(propagate(graph))
    local = find_local(prepared.factors) if local_experts else None
    if plan is None:
        found = infer(
            prepared, ranks, sequence=sequence, experts=experts, strict=strict, regather=regather,
            norm_gradients=norm_gradients, local=local,
        )  # fmt: skip
    else:
        found = given(
            prepared, ranks, plan, sequence=sequence, regather=regather, norm_gradients=norm_gradients, local=local
        )  # fmt: skip
    names = first_names(graph, local) if local is not None else frozenset()
    return TensorParallel(local_program(found.placement), found, names)
