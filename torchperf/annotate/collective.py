"""Collectives: what goes over the links. The device's own memory traffic is inside their measured times."""

from __future__ import annotations

from torchperf.graph.op import Op
from torchperf.graph.work import Work

from .registry import rule
from .traffic import read

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv")


@rule(*(f"torchperf.{kind}" for kind in KINDS))
def collective(op: Op) -> Work:
    """One collective over `ranks` of an axis

    nbytes   the whole tensor, as nccl-tests counts: the larger of what goes in and what comes out. A send_recv: the
             message from each rank to its neighbour (attr `nbytes`, else all that goes in), `steps` times
    stride   devices between two ranks of the group, where they are no neighbours
    flops    0: the additions of a reduction ride on the transfer
    """
    kind = op.name.removeprefix("torchperf.")
    nbytes, steps = max(op.inputs[0].nbytes, op.outputs[0].nbytes), 1
    if kind == "send_recv":
        nbytes, steps = int(op.attr("nbytes", read(op))), int(op.attr("steps", 1))
    dims: tuple[tuple[str, int], ...] = (("ranks", int(op.attr("ranks", 1))), ("nbytes", nbytes))
    stride = int(op.attr("stride", 1))
    dims += (("stride", stride),) if stride > 1 else ()
    dims += (("steps", steps),) if kind == "send_recv" else ()
    return Work("collective", "none", op.inputs[0].dtype, 0, 0, 0, nbytes * steps, 0, dims, kind)
