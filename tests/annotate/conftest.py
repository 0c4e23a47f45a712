"""Ops by hand, and ops recorded from real torch on the meta device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from torchperf.graph.op import Op
from torchperf.graph.tensor import Value

DTYPES = {
    torch.float64: "fp64", torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16",
    torch.bool: "bool", torch.int64: "i64", torch.int32: "i32", torch.int16: "i16", torch.int8: "i8",
    torch.uint8: "u8", torch.uint64: "u64", torch.float8_e4m3fn: "fp8", torch.float8_e5m2: "fp8_e5m2",
    torch.complex64: "c64", torch.complex128: "c128",
}  # fmt: skip


def contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


class Recorder(TorchDispatchMode):
    """Every aten op that runs, as an `Op` described by its schema."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.ops: list[Op] = []
        self.slots: dict[Any, int] = {}
        self.alive: list[Any] = []

    def value(self, tensor: torch.Tensor) -> Value:
        storage = tensor.untyped_storage()
        self.alive.append(storage)
        slot = self.slots.setdefault(storage._cdata, len(self.slots))
        shape, strides, offset = tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset())
        return Value(slot, DTYPES[tensor.dtype], shape, strides, offset)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.aten._local_scalar_dense.default and args[0].device.type == "meta":
            out: Any = True if args[0].dtype == torch.bool else 1
        else:
            out = func(*args, **kwargs)
        given = [(a.name, args[i]) for i, a in enumerate(func._schema.arguments) if i < len(args)]
        given += list(kwargs.items())
        operands, attrs = [], []
        for name, value in given:
            if isinstance(value, torch.Tensor):
                operands.append((name, value))
            elif isinstance(value, (list, tuple)) and any(isinstance(v, torch.Tensor) for v in value):
                operands += [(name, v) for v in value if isinstance(v, torch.Tensor)]
            elif value is not None:
                attrs.append((name, tuple(value) if isinstance(value, list) else value))
        outs = out if isinstance(out, (list, tuple)) else [out]
        flat = [t for o in outs for t in (o if isinstance(o, (list, tuple)) else [o])]
        names = tuple(name for name, _ in operands)
        inputs = tuple(self.value(t) for _, t in operands)
        outputs = tuple(self.value(t) for t in flat if isinstance(t, torch.Tensor))
        self.ops.append(Op(str(func), "forward", "", names, inputs, outputs, tuple(attrs)))
        return out


@pytest.fixture
def record() -> Callable[[Callable[[], Any]], list[Op]]:
    """Ops that a function runs, on whatever device its tensors are."""

    def run(function: Callable[[], Any]) -> list[Op]:
        recorder = Recorder()
        with recorder:
            function()
        return recorder.ops

    return run


@pytest.fixture
def make() -> Callable[..., Op]:
    """An op by hand: `make("aten.mm.default", {"self": (2, 3), "mat2": (3, 4)}, [(2, 4)], attr=1)`.

    A shape may carry its own dtype, `("i64", 2, 3)`; a list of shapes is a list argument.
    """

    def build(name: str, operands: dict[str, Any], outputs: list[Any], dtype: str = "bf16", **attrs: Any) -> Op:
        count = 0

        def value(shape: Any) -> Value:
            nonlocal count
            count += 1
            if isinstance(shape, Value):
                return shape
            own = shape[0] if shape and isinstance(shape[0], str) else dtype
            dims = tuple(d for d in shape if not isinstance(d, str))
            return Value(count, own, dims, contiguous(dims))

        named = [
            (key, value(one))
            for key, shape in operands.items()
            for one in (shape if isinstance(shape, list) else [shape])
        ]
        return Op(
            name, "forward", "", tuple(k for k, _ in named), tuple(v for _, v in named),
            tuple(value(shape) for shape in outputs), tuple(attrs.items()),
        )  # fmt: skip

    return build
