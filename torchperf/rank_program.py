"""What one rank of a tensor-parallel group runs, for people and programs to read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .graph.errors import TorchperfError
from .graph.graph import Capture, Graph
from .partition.collective import Collective
from .partition.tensor_parallel import tensor_parallel
from .pipeline import bound_graph


@dataclass(frozen=True, slots=True)
class RankProgram:
    """`program` is one rank's, with local shapes; `text` tells each parameter's split and the collectives."""

    model: str
    tp: int
    sequence_parallel: bool
    program: Graph
    collectives: tuple[Collective, ...]
    text: str

    def as_dict(self) -> dict[str, Any]:
        """Collectives and parameters with units in their keys."""
        return {
            "model": self.model,
            "tp": self.tp,
            "sequence_parallel": self.sequence_parallel,
            "parameters": [
                {"name": p.names[0], "local_shape": list(p.shape), "dtype": p.dtype}
                for p in self.program.facts.parameters
            ],
            "collectives": [
                {
                    "kind": c.kind,
                    "axis": c.axis,
                    "ranks": c.ranks,
                    "phase": c.phase,
                    "calls": c.count,
                    "size_bytes": c.nbytes,
                    "role": c.role,
                    "module": self.program.blocks[c.block].module,
                }
                for c in self.collectives
            ],
        }


def split(
    model: str | Capture, *, tp: int, sequence_parallel: bool = False, mode: str = "train",
    seq_len: int | None = None, micro_batch: int | None = None,
) -> RankProgram:  # fmt: skip
    """Split `model` over `tp` ranks by the plan that its own program suggests. Raises TorchperfError."""
    if tp < 2:
        raise TorchperfError("`--tp 1` splits nothing", hint="give `--tp 2` or more")
    graph = bound_graph(model, mode, micro_batch, seq_len)
    found = tensor_parallel(graph, tp, sequence=sequence_parallel)
    placement = found.plan.placement
    return RankProgram(
        graph.facts.model, tp, sequence_parallel, found.program, tuple(placement.collectives), f"{found.plan}\n"
    )
