"""Kernels that stand for several ops: what lies between the parts never reaches memory."""

from __future__ import annotations

from torchperf.graph.op import Op
from torchperf.graph.tensor import Value
from torchperf.graph.work import Work

from .registry import rule, work
from .traffic import dtype_of, part, written

# operands of which an op reads only what its indices pick
PICKED = {
    ("aten.embedding", "weight"), ("aten.index", "self"), ("aten._unsafe_index", "self"),
    ("aten.index_select", "self"), ("aten.gather", "self"), ("aten.nll_loss_forward", "self"),
    ("aten.nll_loss_backward", "self"),
}  # fmt: skip


@rule("torchperf.fused")
def fused(op: Op) -> Work:
    """One kernel for `op.parts`

    flops    the sum over the parts; where a part runs on the matrix engine, over the matrix parts alone, so
             that an epilogue (bias, activation) enters no MFU
    read     each distinct input of the kernel once, of a table only the rows picked        write  its outputs
    kind     attribute `kind`, else that of the part with most FLOPs, then most bytes; so dims and dtype
    """
    works = [work(piece) for piece in op.parts]
    matrix = [piece for piece in works if piece.engine == "matrix"]
    counted = matrix or works
    main = max(counted, key=lambda piece: (piece.flops_executed, piece.nbytes), default=None)
    flops = sum(piece.flops for piece in counted)
    vector = any(piece.engine == "vector" for piece in works)
    return Work(
        str(op.attr("kind") or (main.kind if main else "unknown")),
        "matrix" if matrix else "vector" if vector else "none",
        main.dtype if main else dtype_of(op),
        flops,
        sum(piece.flops_noncausal for piece in counted),
        sum(piece.flops_executed for piece in counted),
        sum(_bytes_read(value, op.parts) for value in set(op.inputs)),
        written(op),
        main.dims if main else (),
        main.equation if main else "",
        bool(works) and all(piece.known for piece in works),
    )


def _bytes_read(value: Value, parts: tuple[Op, ...]) -> int:
    """The whole value; where every part that reads it picks from it, as many elements as are picked."""
    picked = 0
    for piece in parts:
        if value not in piece.inputs:
            continue
        packet = piece.name.rsplit(".", 1)[0]
        names = [name for name, v in zip(piece.operands, piece.inputs, strict=True) if v == value]
        if any((packet, name) not in PICKED for name in names):
            return value.nbytes
        if packet == "aten.nll_loss_backward":
            continue
        picks = piece.operand("target") if packet == "aten.nll_loss_forward" else piece.outputs[0]
        picked += picks.numel
    if not any(value in piece.inputs for piece in parts):
        return value.nbytes
    return part(value, picked)
