"""Bytes that an op moves at least, and the forms of Work that the families share."""

from __future__ import annotations

from torchperf.graph.dtype import FLOATING, nbytes
from torchperf.graph.op import Op
from torchperf.graph.tensor import Value
from torchperf.graph.work import Work


def read(op: Op) -> int:
    """Bytes of each distinct input, once."""
    inputs = op.inputs
    if len(inputs) == 1:
        return inputs[0].nbytes
    if len(inputs) == 2:
        first, second = inputs
        return first.nbytes if first == second else first.nbytes + second.nbytes
    return sum(value.nbytes for value in set(inputs))


def read_except(op: Op, *names: str) -> int:
    """Bytes of each distinct input other than the operands of these names."""
    kept = {value for name, value in zip(op.operands, op.inputs, strict=True) if name not in names}
    return sum(value.nbytes for value in kept)


def written(op: Op) -> int:
    """Bytes of the outputs; an in-place list op returns nothing, and writes its `self` operands."""
    outputs = op.outputs
    if len(outputs) == 1:
        return outputs[0].nbytes
    if outputs:
        return sum(value.nbytes for value in outputs)
    return sum(value.nbytes for value in listed(op, "self")) if in_place(op) else 0


def in_place(op: Op) -> bool:
    """Whether the op writes to its `self` operand: `add_`, and not `__and__`."""
    packet = op.name.split(".")[1] if "." in op.name else op.name
    return packet.endswith("_") and not packet.endswith("__")


def listed(op: Op, name: str) -> list[Value]:
    """The inputs of a list argument, which appear as operands of one name."""
    return [value for operand, value in zip(op.operands, op.inputs, strict=True) if operand == name]


def part(value: Value, numel: int) -> int:
    """Bytes of `numel` elements of `value`, at most the whole of it."""
    return min(nbytes(numel, value.dtype), value.nbytes)


def dtype_of(op: Op) -> str:
    """Element type that a vector op computes in: its output's, or its input's where that is no float."""
    if op.outputs:
        dtype = op.outputs[0].dtype
        if dtype in FLOATING or not op.inputs:
            return dtype
    return op.inputs[0].dtype if op.inputs else "fp32"


def vector(op: Op, kind: str, flops: int, dims: tuple[tuple[str, int], ...] = ()) -> Work:
    """Work on the vector engine that reads every input and writes every output."""
    return Work(kind, "vector", dtype_of(op), flops, flops, flops, read(op), written(op), dims)


def moved(op: Op, kind: str, bytes_read: int, bytes_written: int, flops: int = 0) -> Work:
    """Work whose bytes are not simply its inputs and outputs; the vector engine does its FLOPs, if any."""
    engine = "vector" if flops else "none"
    return Work(kind, engine, dtype_of(op), flops, flops, flops, bytes_read, bytes_written)


def rows_and_width(value: Value, width: int) -> tuple[tuple[str, int], ...]:
    """Dims of an op that works along rows of `width` elements."""
    return (("rows", value.numel // width if width else 0), ("width", width))


def shape(value: Value) -> tuple[int, ...]:
    """Dims of a bound value."""
    return value.shape  # type: ignore[return-value]
