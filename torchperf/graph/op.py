"""One recorded operator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from .errors import TorchperfError
from .expr import Expr, Ratio, Scaled
from .tensor import Value

Attr = Any  # bool | int | Expr | float | Ratio | Scaled | str | None | tuple of these
PHASES = ("forward", "backward", "recompute", "optimizer")


def bind_attr(attr: Attr, sizes: Mapping[str, int]) -> Attr:
    """An argument with its size expressions evaluated."""
    if isinstance(attr, (Expr, Ratio, Scaled)):
        return attr(sizes)
    if isinstance(attr, tuple):
        return tuple(bind_attr(item, sizes) for item in attr)
    return attr


@dataclass(frozen=True, slots=True)
class Op:
    """An operator of the recorded stream. It carries no cost: cost is a function of it (annotate, price).

    name      "aten.mm.default"
    phase     forward | backward | recompute | optimizer
    module    path of the module that ran it, `*` for the layer's index in a folded block
    operands  schema name of each input, e.g. ("self", "mat2"); a list argument repeats its name
    inputs    the tensors read, in the order of `operands`
    outputs   the tensors returned
    attrs     (schema name, value) of every other argument that was given (defaults are left out)
    parts     the ops that this one stands for, where the fuse room made one kernel of several
    """

    name: str
    phase: str
    module: str
    operands: tuple[str, ...]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    attrs: tuple[tuple[str, Attr], ...] = ()
    parts: tuple[Op, ...] = ()

    def operand(self, name: str) -> Value:
        """The input of that schema name."""
        found = self.find(name)
        if found is None:
            raise TorchperfError(f"op `{self.name}` has no operand `{name}`", facts=[("in", self.module)])
        return found

    def find(self, name: str) -> Value | None:
        """The input of that schema name, or None where it was not given."""
        for operand, value in zip(self.operands, self.inputs, strict=True):
            if operand == name:
                return value
        return None

    def attr(self, name: str, default: Attr = None) -> Attr:
        """The argument of that schema name, or `default` where it was not given."""
        for key, value in self.attrs:
            if key == name:
                return value
        return default

    def bind(self, sizes: Mapping[str, int], values: Mapping[int, Value]) -> Op:
        """The same op with integer dims; `values` maps id(value) to the bound value."""
        return replace(
            self,
            inputs=tuple(values[id(v)] for v in self.inputs),
            outputs=tuple(values[id(v)] for v in self.outputs),
            attrs=tuple((k, bind_attr(a, sizes)) for k, a in self.attrs),
        )
