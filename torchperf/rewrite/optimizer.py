"""The optimizer step, priced from the parameters: what it keeps, and what it moves.

Bytes per parameter of the state, and of one fused pass over it (each value read once, each changed value written
once). Sources: the update rules; torch.optim.AdamW, Lion [chen2023], Adafactor [shazeer2018], 8-bit Adam
[dettmers2022] (two states of one byte, with an fp32 scale per 256 values).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..graph.dtype import bits
from ..graph.errors import TorchperfError
from ..graph.graph import Block, Graph, Segment
from ..graph.op import Op
from .precision import Precision

OPTIMIZERS = ("adamw", "adam8bit", "sgd", "adafactor", "lion")
_FLOPS = {"adamw": 14, "adam8bit": 20, "sgd": 3, "adafactor": 16, "lion": 9}


@dataclass(frozen=True, slots=True)
class OptimizerState:
    """Bytes on the device: `rows` are (what, bytes per parameter), `nbytes` the whole."""

    name: str
    rows: tuple[tuple[str, float], ...]
    nbytes: int


def known(name: str) -> None:
    """Raise TorchperfError for an optimizer that is not priced."""
    if name not in OPTIMIZERS:
        raise TorchperfError(
            f"unknown optimizer `{name}`", facts=[("flag", "--optimizer")], hint=f"one of {', '.join(OPTIMIZERS)}"
        )


def state(graph: Graph, name: str, to: Precision) -> OptimizerState:
    """The optimizer's state and master weights for the trainable parameters of the graph."""
    known(name)
    trainable = [p for p in graph.facts.parameters if p.trained]
    numel = sum(p.numel for p in trainable)
    width = bits(to.state) // 8
    rows: list[tuple[str, float]] = []
    total = 0.0
    if to.master:
        rows.append(("master weights fp32", 4.0))
        total += 4 * numel
    if name == "adamw":
        rows += [(f"first moment {to.state}", float(width)), (f"second moment {to.state}", float(width))]
        total += 2 * width * numel
    elif name == "adam8bit":
        rows += [("first moment 8-bit", 1 + 4 / 256), ("second moment 8-bit", 1 + 4 / 256)]
        total += 2 * (1 + 4 / 256) * numel
    elif name == "lion":
        rows.append((f"momentum {to.state}", float(width)))
        total += width * numel
    elif name == "adafactor":
        factored = sum(4 * _factored(p.shape) for p in trainable)
        rows.append(("factored second moment fp32", factored / max(numel, 1)))
        total += factored
    return OptimizerState(name, tuple(rows), round(total))


def _factored(shape: tuple[int, ...]) -> int:
    """Numbers that Adafactor keeps for one parameter: a row and a column each matrix, all of a vector."""
    if len(shape) < 2:
        return shape[0] if shape else 1
    lead = 1
    for d in shape[:-2]:
        lead *= d
    return lead * (shape[-2] + shape[-1])


def append(graph: Graph, name: str, to: Precision) -> Graph:
    """The graph with the optimizer step behind backward, one op a parameter dtype."""
    ops = []
    for dtype in sorted({p.dtype for p in graph.facts.parameters if p.trained}):
        numel = sum(p.numel for p in graph.facts.parameters if p.trained and p.dtype == dtype)
        kept = state(graph, name, to)
        moved = sum(per for _, per in kept.rows)
        weight = bits(dtype) // 8
        read = weight + moved + (0 if to.master else weight)  # the gradient, the state, the weights
        ops.append(
            Op(
                f"torchperf.optimizer.{name}", "optimizer", "", (), (), (),
                (("numel", numel), ("dtype", "fp32"), ("read_bytes_per_parameter", float(read)),
                 ("write_bytes_per_parameter", float(moved + weight)), ("flops_per_parameter", _FLOPS[name])),
            )
        )  # fmt: skip
    if not ops:
        return graph
    block = Block("", "optimizer", (), tuple(ops))
    segment = Segment(len(graph.blocks), "", ())
    return replace(graph, blocks=(*graph.blocks, block), segments=(*graph.segments, segment))
