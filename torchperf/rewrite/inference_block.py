"""One block with its weights, or its cache, in other dtypes, and the scales that go with them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from ..graph.dtype import bits, nbytes
from ..graph.graph import Block, Parameter
from ..graph.op import Op
from ..graph.tensor import Storage, Value

PRODUCTS = {
    "aten.mm": ("self", "mat2"),
    "aten.addmm": ("mat1", "mat2"),
    "aten.linear": ("input", "weight"),
    "aten._grouped_mm": ("self", "mat2"),
    "transformers.grouped_mm_fallback": ("input", "weight"),
}
_LEAST = 64  # rows and columns of a weight below which it is a gate, not a layer


@dataclass(frozen=True, slots=True)
class Quantised:
    """What to change: weights to `dtype` (group, scale and zero point as of WeightFormat), x to `x`, cache to `cache`.

    experts  rows of a router, which is left alone
    only_experts, head  as of WeightFormat
    """

    dtype: str = "bf16"
    group: int = 0
    scale: str = "fp32"
    zero_bits: int = 0
    x: str | None = None
    experts: int = 0
    cache: str | None = None
    only_experts: bool = False
    head: bool = False


class Rewriter:
    """Rewrites one block. `added` are the new slots, each by the slot that it belongs to and its role."""

    def __init__(self, block: Block, to: Quantised) -> None:
        self.block, self.to = block, to
        self.storages: list[Storage] = list(block.storages)
        self.added: list[tuple[int, str]] = []
        self.parameters: dict[tuple[int, str], Parameter] = {}
        self.weights = self._weights() if to.cache is None else {}
        self._before: list[Op] = []
        self._narrow: dict[Value, Value] = {}
        changed = dict.fromkeys(self.weights, to.dtype)
        if to.cache is not None:
            changed |= {i: to.cache for i, s in enumerate(block.storages) if s.kind == "cache"}
        for slot, dtype in changed.items():
            old = next(v.dtype for v in block.values() if v.slot == slot)
            storage = self.storages[slot]
            self.storages[slot] = replace(storage, nbytes=-(-int(storage.nbytes) * bits(dtype) // bits(old)))  # type: ignore[arg-type]
        self._values = {
            id(v): replace(v, dtype=changed[v.slot]) if v.slot in changed else v for v in block.values()
        }  # fmt: skip

    def rewritten(self, step: Callable[[Rewriter, Op], Op]) -> Block:
        """The block with `step` applied to each op, and the ops that it put before them."""
        ops: list[Op] = []
        for op in self.block.ops:
            moved = replace(
                op,
                inputs=tuple(self._values[id(v)] for v in op.inputs),
                outputs=tuple(self._values[id(v)] for v in op.outputs),
            )
            done = step(self, moved)
            ops += [*self._before, done]
            self._before.clear()
            if _in_place(done):
                written = {v.slot for v in done.outputs}
                self._narrow = {x: y for x, y in self._narrow.items() if x.slot not in written}
        return Block(self.block.module, self.block.phase, tuple(self.storages), tuple(ops))

    def _weights(self) -> dict[int, tuple[int, ...]]:
        """Slots of the weights to change, with the shape [.., n, k] of each: 16-bit, of a repeated layer (or of the
        head), only used as the second operand of a product.
        """
        if not self.block.module and not self.to.head:
            return {}
        found: dict[int, tuple[int, ...]] = {}
        others: set[int] = set()
        for op in self.block.ops:
            aliases = {v.slot for v in op.outputs}
            names = PRODUCTS.get(op.name.rpartition(".")[0])
            for operand, value in zip(op.operands, op.inputs, strict=True):
                if self.block.storages[value.slot].kind != "param" or value.slot in aliases:
                    continue
                if names and operand == names[1] and self._large(op, value):
                    found[value.slot] = _rows_of(op, value)
                else:
                    others.add(value.slot)
        return {slot: shape for slot, shape in found.items() if slot not in others}

    def _large(self, op: Op, weight: Value) -> bool:
        if self.to.only_experts and "grouped_mm" not in op.name:
            return False
        n, k = _rows_of(op, weight)[-2:]
        router = self.to.experts and n == self.to.experts and len(weight.shape) == 2
        return weight.dtype in ("bf16", "fp16") and min(n, k) >= _LEAST and not router

    def product(self, op: Op) -> Op:
        """A product with a changed weight: its scales are read, and x is quantised before it where that is asked."""
        names = PRODUCTS.get(op.name.rpartition(".")[0])
        weight = op.find(names[1]) if names else None
        if names is None or weight is None or weight.slot not in self.weights:
            return op
        operands, inputs = list(op.operands), list(op.inputs)
        for role, value in self._scales(weight.slot):
            operands.append(role)
            inputs.append(value)
        if self.to.x is not None:
            at = operands.index(names[0])
            inputs[at] = self._quantised(inputs[at], op)
        return replace(op, operands=tuple(operands), inputs=tuple(inputs))

    def _scales(self, slot: int) -> list[tuple[str, Value]]:
        *lead, n, k = self.weights[slot]
        group = self.to.group
        shape = (*lead, n, -(-k // group)) if group > 0 else (*lead, n, 1) if group == 0 else (*lead, 1, 1)
        wanted = [("scales", self.to.scale)]
        if self.to.zero_bits:
            wanted.append(("zeros", f"i{self.to.zero_bits}"))
        found = []
        for role, dtype in wanted:
            value = self._new(slot, role, shape, dtype, "param")
            self.parameters[slot, role] = Parameter(("",), shape, dtype, False, -1)
            found.append((role, value))
        return found

    def _new(self, source: int, role: str, shape: tuple[int, ...], dtype: str, kind: str) -> Value:
        """A contiguous value in a new slot; the same for the same source and role."""
        size = nbytes(math.prod(shape), dtype)
        if (source, role) not in self.added:
            self.added.append((source, role))
            name = self.storages[source].name
            self.storages.append(Storage(size, kind, f"{name}_{role}" if name and kind != "activation" else None))
        slot = len(self.block.storages) + self.added.index((source, role))
        if size > int(self.storages[slot].nbytes):  # type: ignore[arg-type]
            self.storages[slot] = replace(self.storages[slot], nbytes=size)
        strides = tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))
        return Value(slot, dtype, shape, strides)

    def _quantised(self, x: Value, op: Op) -> Value:
        """x in the dtype of the product, by an op of its own with a scale for each row; products of x share it."""
        assert self.to.x is not None
        known = self._narrow.get(x)
        if known is None:
            shape = tuple(int(d) for d in x.shape)  # type: ignore[arg-type]
            number = sum(role.startswith("quantised") for _, role in self.added)
            known = self._narrow[x] = self._new(x.slot, f"quantised_{number}", shape, self.to.x, "activation")
            group, dtype = (16, "fp8") if self.to.x == "fp4" else (shape[-1], "fp32")
            scale = self._new(
                x.slot, f"row_scales_{number}", (*shape[:-1], -(-shape[-1] // group)), dtype, "activation"
            )
            attrs = (("rows", True), ("transpose", False), ("amax", 0), ("readings", 1), ("block", True))
            cast = Op("torchperf.quantise.default", op.phase, op.module, ("self",), (x,), (known, scale), attrs)
            self._before.append(cast)
        return known

    def cached(self, op: Op, scaled: bool) -> Op:
        """An op that reads or writes the cache: with scales and zero points of each token and head, where `scaled`."""
        if not scaled or op.name.rpartition(".")[0] not in ("torchperf.attention", "aten.copy_"):
            return op
        operands, inputs, outputs = list(op.operands), list(op.inputs), list(op.outputs)
        seen: set[int] = set()
        for value in dict.fromkeys(op.inputs):
            if self.block.storages[value.slot].kind == "cache" and value.slot not in seen:
                seen.add(value.slot)
                shape = (*(int(d) for d in value.shape[:-1]), 2)  # type: ignore[arg-type]
                part = self._new(value.slot, "scales", shape, "fp16", "cache")
                if op.name.startswith("torchperf"):
                    operands.append(f"{op.operands[op.inputs.index(value)]}_scales")
                    inputs.append(part)
                else:
                    outputs.append(part)
        return replace(op, operands=tuple(operands), inputs=tuple(inputs), outputs=tuple(outputs))


def _in_place(op: Op) -> bool:
    packet = op.name.split(".")[1] if "." in op.name else op.name
    return packet.endswith("_") and not packet.endswith("__")


def _rows_of(op: Op, weight: Value) -> tuple[int, ...]:
    """[.., n, k] of a weight, however it lies in the product."""
    shape = tuple(int(d) for d in weight.shape)  # type: ignore[arg-type]
    transposed = op.name.startswith(("aten.linear", "transformers."))
    return shape if transposed else (*shape[:-2], shape[-1], shape[-2])
