"""Runs a bound graph on real numbers (float64): the truth against which a rank's ops are compared.

Storages are flat tensors, values strided views of them; every op is torch's own, except those that torch does not have
(our attention), that are random (dropout: nothing is dropped) or that want another dtype (_grouped_mm).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchperf.graph.dtype import BITS
from torchperf.graph.graph import Graph
from torchperf.graph.op import Op
from torchperf.graph.tensor import Value

KINDS = {"i64": torch.int64, "i32": torch.int32, "bool": torch.bool, "u8": torch.uint8, "i16": torch.int16}
IDS = 24  # ids are drawn below this


def kind(dtype: str) -> torch.dtype:
    return KINDS.get(dtype, torch.float64)


def attention(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, sinks: Any, attrs: dict[str, Any]
) -> tuple[Tensor, Tensor]:
    """(out, logsumexp) by the textbook; grouped heads, causal, window."""
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = q @ k.transpose(2, 3) * (attrs.get("scale") or q.shape[-1] ** -0.5)
    if attrs.get("softcap"):
        scores = attrs["softcap"] * torch.tanh(scores / attrs["softcap"])
    if bias is not None:
        scores = scores + bias if bias.dtype != torch.bool else scores.masked_fill(~bias, -torch.inf)
    rows = torch.arange(q.shape[2])[:, None] + k.shape[2] - q.shape[2]
    columns = torch.arange(k.shape[2])[None]
    keep = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool)
    if attrs.get("is_causal"):
        keep &= columns <= rows
    if attrs.get("window"):
        keep &= columns > rows - attrs["window"]
    scores = scores.masked_fill(~keep, -torch.inf)
    return scores.softmax(-1) @ v, scores.logsumexp(-1)


def grouped(a: Tensor, b: Tensor, ends: Tensor, own: range | None = None) -> Tensor:
    """Experts one after another; with `own`, b (or the result) holds these experts only, other rows stay 0."""
    own = range(len(ends)) if own is None else own
    starts = [0, *ends.tolist()]
    if a.dim() == 2 and b.dim() == 3:
        out = a.new_zeros(a.shape[0], b.shape[2])
        for at, e in enumerate(own):
            rows = slice(starts[e], starts[e + 1])
            out[rows] = a[rows] @ b[at]
        return out
    return torch.stack([a[:, starts[e] : starts[e + 1]] @ b[starts[e] : starts[e + 1]] for e in own])


def call(op: Op, inputs: list[Tensor], own: range | None = None, **changed: Any) -> list[Tensor]:
    """One op on these tensors; `changed` replaces arguments."""
    attrs = {**{k: _argument(k, a) for k, a in op.attrs}, **changed}
    given: dict[str, Any] = {}
    for name, tensor in zip(op.operands, inputs, strict=True):
        given[name] = (
            [*given[name], tensor]
            if isinstance(given.get(name), list)
            else ([given[name], tensor] if name in given else tensor)
        )
    if op.name == "torchperf.attention.default":
        return list(attention(given["query"], given["key"], given["value"], given.get("bias"), None, attrs))
    if op.name == "torchperf.attention_backward.default":
        return _attention_backward(given, attrs)
    if op.name == "aten.native_dropout.default":
        return [inputs[0].clone(), torch.ones_like(inputs[0], dtype=torch.bool)]
    if op.name == "aten.native_dropout_backward.default":
        return [inputs[0] * inputs[1]]
    if op.name == "aten.histc.default":
        return [
            torch.histc(inputs[0].double(), attrs["bins"], attrs["min"], attrs["max"]).to(kind(op.outputs[0].dtype))
        ]
    if op.name == "aten._grouped_mm.default":
        return [grouped(given["self"], given["mat2"], given["offs"], own)]
    if op.name.startswith(("aten.new_empty", "aten.empty")):
        return [torch.zeros(v.shape, dtype=kind(v.dtype)) for v in op.outputs]  # type: ignore[arg-type]
    namespace, name, overload = op.name.split(".")
    function = getattr(getattr(getattr(torch.ops, namespace), name), overload)
    args, kwargs = [], {}
    for argument in function._schema.arguments:
        if argument.name in given:
            found = given[argument.name]
            if "Tensor?[]" in str(argument.type) or "Tensor[]" in str(argument.type) or "List" in str(argument.type):
                found = found if isinstance(found, list) else [found]
        elif argument.name in attrs:
            found = attrs[argument.name]
        elif argument.has_default_value() or "Optional" in str(argument.type) or "?" in str(argument.type):
            found = argument.default_value if argument.has_default_value() else None
        else:
            raise AssertionError(f"{op.name}: no {argument.name}")
        if argument.kwarg_only:
            kwargs[argument.name] = found
        else:
            args.append(found)
    out = function(*args, **kwargs)
    return [t for t in (out if isinstance(out, (tuple, list)) else [out]) if t is not None]


def _attention_backward(given: dict[str, Any], attrs: dict[str, Any]) -> list[Tensor]:
    with torch.enable_grad():
        names = ["query", "key", "value", *(["bias"] if given.get("bias") is not None else [])]
        leaves = {n: given[n].detach().clone().requires_grad_(given[n].is_floating_point()) for n in names}
        out, _ = attention(leaves["query"], leaves["key"], leaves["value"], leaves.get("bias"), None, attrs)
        wanted = [leaf for leaf in leaves.values() if leaf.requires_grad]
        grads = dict(
            zip(
                [n for n in names if leaves[n].requires_grad],
                torch.autograd.grad(out, wanted, given["grad_out"]),
                strict=True,
            )
        )
    empty = torch.empty(0, dtype=torch.float64)
    bias = grads.get("bias", empty) if attrs.get("output_mask", (False,))[0] else empty
    return [grads["query"], grads["key"], grads["value"], bias, empty]


def _argument(name: str, attr: Any) -> Any:
    if name in ("dtype", "input_dtype") and isinstance(attr, str):
        return kind(attr)
    if name == "half_to_float":
        return False
    if name == "memory_format":
        return getattr(torch, attr) if isinstance(attr, str) else attr
    return list(attr) if isinstance(attr, tuple) else attr


class Machine:
    """The storages of one run, and what each op of each block read and wrote the first time it ran."""

    def __init__(self, graph: Graph) -> None:
        torch.manual_seed(0)
        self.graph = graph
        self.storages: dict[int, Tensor] = {}
        self.reads: dict[tuple[int, int], list[Tensor]] = {}
        self.writes: dict[tuple[int, int], list[Tensor]] = {}

    def run(self) -> Machine:
        for segment in self.graph.segments:
            block = self.graph.blocks[segment.block]
            for i, op in enumerate(block.ops):
                self._op(segment.block, i, op, segment.storages)
        return self

    def _op(self, b: int, i: int, op: Op, of: tuple[int, ...]) -> None:
        inputs = [self._view(b, v, of) for v in op.inputs]
        first = (b, i) not in self.reads
        if first:
            self.reads[b, i] = [t.clone() for t in inputs]
        if op.name.split(".")[1].endswith("_"):
            call(op, inputs)
        elif not (inputs and all(v.slot == op.inputs[0].slot for v in op.outputs)):
            for value, result in zip(op.outputs, call(op, inputs), strict=True):
                if result.numel():
                    self._view(b, value, of).copy_(result)
        if first:
            self.writes[b, i] = [self._view(b, v, of).clone() for v in op.outputs]

    def _view(self, b: int, value: Value, of: tuple[int, ...]) -> Tensor:
        storage = of[value.slot]
        if storage not in self.storages:
            self.storages[storage] = self._new(b, value)
        return self.storages[storage].as_strided(value.shape, value.strides, value.offset)  # type: ignore[arg-type]

    def _new(self, b: int, value: Value) -> Tensor:
        storage = self.graph.blocks[b].storages[value.slot]
        numel = int(storage.nbytes) * 8 // BITS[value.dtype]  # type: ignore[arg-type]
        dtype = kind(value.dtype)
        if storage.kind == "input" and dtype == torch.int64:
            return torch.randint(0, IDS if numel > 4 else 2, (numel,))  # labels of a class: one a sample
        if storage.kind == "buffer" and dtype == torch.int64:
            return torch.arange(numel) if "position" in (storage.name or "") else torch.zeros(numel, dtype=dtype)
        if storage.kind in ("param", "buffer", "input") and dtype == torch.float64:
            return torch.randn(numel, dtype=dtype) * 0.3
        return torch.zeros(numel, dtype=dtype)
