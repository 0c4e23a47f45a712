"""The kernels of a block for the walk of its streams: seconds, axis, and which collectives run beside compute."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..graph.graph import Block
from ..graph.price import Price

SLICED = ("all_gather", "reduce_scatter")
PRODUCTS = ("aten.mm.", "aten.addmm.", "aten.bmm.", "aten._scaled_mm.", "aten._grouped_mm.")


@dataclass(frozen=True, slots=True)
class Kernel:
    """One priced op, ready for the walk."""

    name: str
    seconds: float
    axis: str  # "" for compute
    overlaps: bool
    ring: int  # steps of the ring that feeds this attention; 0
    slices: int  # of a collective that runs beside the product that reads or makes its tensor; 0
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    weight: bool
    product: bool
    cast: bool  # to few bits, slice by slice as its source arrives


def kernels(block: Block, prices: Sequence[Price], overlap: frozenset[str], pace: float = 1.0) -> tuple[Kernel, ...]:
    """The kernels of a block that take time; `overlap` and `pace` as in Training."""
    found = []
    for op, price in zip(block.ops, prices, strict=True):
        if price.seconds <= 0.0:
            continue
        axis = op.attr("axis", "") if op.name.startswith("torchperf.") and op.attr("ranks") is not None else ""
        role = op.attr("role", "")
        pipelined = axis == "tp" and "tp-pipelined" in overlap and op.name.endswith(SLICED)
        if role == "fsdp":
            overlaps = ("weights" if "gather" in op.name else "gradients") in overlap
        else:
            overlaps = role == "ring" or pipelined or (axis in ("tp", "ep") and axis in overlap)
        found.append(
            Kernel(
                op.name, price.seconds * (1.0 if axis else pace), str(axis), overlaps, int(op.attr("ring", 0)),
                int(op.attr("ranks", 0)) if pipelined else 0,
                tuple({v.slot for v in op.inputs}), tuple({v.slot for v in op.outputs}),
                any(block.storages[v.slot].kind == "grad" for v in op.outputs),
                op.name.startswith(PRODUCTS),
                any(one.name.startswith("torchperf.quantise") for one in op.parts or (op,)),
            )
        )  # fmt: skip
    return tuple(found)
