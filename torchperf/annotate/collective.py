"""Collectives: what goes over the links. The device's own memory traffic is inside their measured times."""

from __future__ import annotations

from torchperf.graph.op import Op
from torchperf.graph.work import Work

from .registry import rule

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")


@rule(*(f"torchperf.{kind}" for kind in KINDS))
def collective(op: Op) -> Work:
    """One collective over `ranks` of an axis

    nbytes   the whole tensor, as nccl-tests counts: the larger of what goes in and what comes out
    flops    0: the additions of a reduction ride on the transfer
    """
    nbytes = max(op.inputs[0].nbytes, op.outputs[0].nbytes)
    dims = (("ranks", int(op.attr("ranks", 1))), ("nbytes", nbytes))
    return Work("collective", "none", op.inputs[0].dtype, 0, 0, 0, nbytes, 0, dims, op.name.removeprefix("torchperf."))
