"""The optimizer step, priced from the parameters: what it keeps, and what it moves.

Bytes per parameter of the state, and of one fused pass over it (each value read once, each changed value written
once). Sources: the update rules; torch.optim.AdamW, Lion [chen2023], Adafactor [shazeer2018], 8-bit Adam
[dettmers2022] (two states of one byte, with an fp32 scale per 256 values); AdamW with moments in bf16: Megatron Core's
precision-aware optimizer (exp_avg_dtype, exp_avg_sq_dtype) [megatron_lm].
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from ..graph.dtype import bits
from ..graph.errors import TorchperfError
from ..graph.graph import Block, Graph, Parameter, Segment
from ..graph.op import Op
from ..graph.runtime import Training
from .precision import Precision

OPTIMIZERS = ("adamw", "adamw-bf16", "adam8bit", "sgd", "adafactor", "lion")
_FLOPS = {"adamw": 14, "adamw-bf16": 14, "adam8bit": 20, "sgd": 3, "adafactor": 16, "lion": 9}


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


def state(parameters: Iterable[Parameter], name: str, to: Precision) -> OptimizerState:
    """The optimizer's state and master weights for the trained ones of these parameters."""
    known(name)
    trainable = [p for p in parameters if p.trained]
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
    elif name == "adamw-bf16":
        rows += [("first moment bf16", 2.0), ("second moment bf16", 2.0)]
        total += 4 * numel
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


def passes(
    parameters: Iterable[Parameter], name: str, to: Precision, training: Training, *, masters: bool = True,
    shards: Callable[[Parameter], int] = lambda _: 1,
) -> tuple[Op, ...]:  # fmt: skip
    """The kernels of one step over the trained ones of these parameters: an op a pass and dtype.

    Bytes per parameter, g being the width of a gradient, w of a weight, s of what the optimizer keeps:

        unscale   read g, write g         fp16 only: gradients divided by the loss scale, checked for infinities
        norm      read g                  the gradient's norm, for clipping
        clip      read g, write g
        step      read g + s, write s     one fused kernel over gradient, states and master (or weight)
        foreach   read g + 12 x 4, write 8 x 4     a kernel an operation over lists of tensors (torch.optim foreach)
        copy      read 4, write w         masters to weights; without this pass `step` writes the weights itself
        zero      write g

    shards    of a parameter, the ranks that share its step
    masters   False where the master is the parameter itself (sharded fp32): no 16-bit weight is written
    Source: [megatron_lm] megatron/optimizer/optimizer.py and clip_grads.py; torch.optim.
    """
    trained = [p for p in parameters if p.trained]
    numel: dict[str, float] = {}
    for p in trained:
        numel[p.dtype] = numel.get(p.dtype, 0) + p.numel / shards(p)
    moved = sum(per for _, per in state(trained, name, to).rows)
    ops = []
    for dtype, count in sorted(numel.items()):
        weight = bits(dtype) // 8
        gradient = 4 if training.wide else weight
        written = weight if masters and "copy" not in training.passes else 0
        own = 0 if to.master else weight  # the weight itself is what is updated
        table = {
            "unscale": (gradient, gradient, 1),
            "norm": (gradient, 0, 2),
            "clip": (gradient, gradient, 1),
            "step": (gradient + moved + own, moved + (written if to.master else weight), _FLOPS[name]),
            "foreach": (gradient + 48, 32, _FLOPS[name]),
            "copy": (4, weight, 0),
            "zero": (0, gradient, 0),
        }
        for one in training.passes:
            if (one == "unscale" and to.compute != "fp16") or (one == "copy" and not (to.master and masters)):
                continue
            read, write, flops = table[one]
            ops.append(
                Op(
                    f"torchperf.optimizer.{name if one == 'step' else one}", "optimizer", "", (), (), (),
                    (("numel", round(count)), ("dtype", "fp32"), ("read_bytes_per_parameter", float(read)),
                     ("write_bytes_per_parameter", float(write)), ("flops_per_parameter", flops)),
                )
            )  # fmt: skip
    return tuple(ops)


def accumulation(graph: Graph, training: Training, micro_batches: int) -> Graph:
    """The graph with the addition of each layer's gradients to those of earlier micro-batches, behind its backward.

    fused      the product that makes a gradient adds to the fp32 buffer: it reads 4 and writes 4 where it wrote w
    separate   a kernel of its own reads both and writes the sum; none for a single micro-batch in the weights' dtype
    """
    wide = training.wide
    if training.accumulation == "separate" and micro_batches == 1 and not wide:
        return graph
    blocks = []
    for block in graph.blocks:
        made = {v.slot: v for op in block.ops for v in op.outputs if block.storages[v.slot].kind == "grad"}
        numel = sum(v.numel for v in made.values())
        if block.phase != "backward" or not numel:
            blocks.append(block)
            continue
        width = bits(next(iter(made.values())).dtype) // 8
        kept = 4 if wide else width
        read, write = (kept, kept - width) if training.accumulation == "fused" else (width + kept, kept)
        attrs = (("numel", numel), ("dtype", "fp32"), ("read_bytes_per_parameter", float(read)),
                 ("write_bytes_per_parameter", float(write)), ("flops_per_parameter", 1))  # fmt: skip
        op = Op("torchperf.accumulate", "backward", block.module, (), (), (), attrs)
        blocks.append(replace(block, ops=(*block.ops, op)))
    return replace(graph, blocks=tuple(blocks))


def append(graph: Graph, name: str, to: Precision, training: Training) -> Graph:
    """The graph with the optimizer step behind backward."""
    ops = passes(graph.facts.parameters, name, to, training)
    if not ops:
        return graph
    block = Block("", "optimizer", (), ops)
    return replace(graph, blocks=(*graph.blocks, block), segments=(*graph.segments, Segment(len(graph.blocks), "", ())))
