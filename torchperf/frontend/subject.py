"""What is captured: a module on the meta device, and how to make its inputs at any size."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass(slots=True)
class Subject:
    """A module and its inputs.

    arguments     sizes -> (args, kwargs) of forward, tensors on meta
    sizes         the free sizes and their defaults, in order, e.g. {"batch": 1, "seq": 2048}
    limits        (size, largest legal value)
    breaks        sequence lengths at which the model's program changes (scan chunks)
    constants     sequence lengths at which a number bends but the program stays (windows of a cache)
    fixed         why the sizes are not free, or ""
    config        plain facts of a config
    tp_plan       the tensor-parallel plan that the model brings, {module or parameter: style}
    loss          outputs -> scalar, or None to look for one
    own_code      whether forward may name a device, as a user's file does and a library's does not
    """

    name: str
    module: nn.Module
    arguments: Callable[[Mapping[str, int]], Arguments]
    sizes: dict[str, int]
    limits: dict[str, int] = field(default_factory=dict)
    breaks: tuple[int, ...] = ()
    constants: tuple[int, ...] = ()
    fixed: str = ""
    config: dict[str, int | float | str | bool] = field(default_factory=dict)
    tp_plan: dict[str, str] = field(default_factory=dict)
    assumptions: list[str] = field(default_factory=list)
    loss: Callable[[Any], torch.Tensor] | None = None
    own_code: bool = True


def tensors_in(value: Any, name: str = "") -> dict[str, torch.Tensor]:
    """Every tensor inside arguments or outputs, by a dotted name."""
    if isinstance(value, torch.Tensor):
        return {name or "0": value}
    found: dict[str, torch.Tensor] = {}
    if isinstance(value, Mapping):
        for key, item in value.items():
            found.update(tensors_in(item, f"{name}.{key}" if name else str(key)))
    elif isinstance(value, (list, tuple)):
        for i, item in enumerate(value):
            found.update(tensors_in(item, f"{name}.{i}" if name else str(i)))
    return found


def find_loss(outputs: Any) -> tuple[torch.Tensor, bool]:
    """The loss among the outputs: one named so, else the single scalar, else the sum of all (told by the flag)."""
    named = outputs.get("loss") if isinstance(outputs, Mapping) else getattr(outputs, "loss", None)
    if isinstance(named, torch.Tensor) and named.dim() == 0:
        return named, True
    floats = [t for t in tensors_in(outputs).values() if t.is_floating_point() and t.requires_grad]
    scalars = [t for t in floats if t.dim() == 0]
    if len(scalars) == 1:
        return scalars[0], True
    total = sum(t.float().sum() for t in floats)
    if not isinstance(total, torch.Tensor):
        raise ValueError("forward returned no floating-point tensor that depends on the parameters")
    return total, False
