"""Inputs whose numbers the model computes with, such as the grid of each image: tensors on the host, with data.

What is computed among them alone is no work of the device and is not recorded; integers stay on the host even where
the model moves them, since it may read them yet. Where one meets a tensor of the device it is moved there, once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_iter, tree_map_only

_TO = torch.ops.aten._to_copy.default
Mark = Callable[[Tensor, str, str], None]
_INDEXED = (torch.ops.aten.index.Tensor, torch.ops.aten.index_put.default, torch.ops.aten.index_put_.default)


def _is_mask(index: Tensor | None) -> bool:
    return index is not None and index.dtype is torch.bool and index.device.type == "cpu"


class Host:
    """Keeps tensors on the host apart from those on the meta device, for the length of one recording."""

    def __init__(self, mark: Mark) -> None:
        self._mark = mark
        self._moved: dict[int, tuple[Tensor, Tensor]] = {}

    def moved(self, func: Any, args: Any, kwargs: Mapping[str, Any]) -> tuple[Any, Any] | None:
        """The arguments with every tensor on the device, or None for an op that reads tensors of the host alone."""
        tensors = [t for t in tree_iter((args, kwargs)) if isinstance(t, Tensor)]
        on_host = [t for t in tensors if t.device.type == "cpu"]
        if not on_host:
            return args, kwargs
        if len(on_host) == len(tensors):
            return None
        if func in _INDEXED:  # a mask with data picks a known number of rows
            rows = (i.nonzero(as_tuple=True) if _is_mask(i) else (i,) for i in args[1])
            args = (args[0], [i for part in rows for i in part], *args[2:])
        return tree_map_only(Tensor, self._to_device, (args, dict(kwargs)))  # type: ignore[no-any-return]

    def _to_device(self, tensor: Tensor) -> Tensor:
        if tensor.device.type != "cpu":
            return tensor
        if id(tensor) not in self._moved:
            self._put(tensor, torch.empty_like(tensor, device="meta"))
        return self._moved[id(tensor)][1]

    def run(self, func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
        """What the op returns; floating-point numbers that it puts on the device are an input of the program."""
        if func is _TO and not args[0].is_floating_point():
            kwargs = {**kwargs, "device": None}
        out = func(*args, **kwargs)
        for tensor in tree_iter(out):
            if isinstance(tensor, Tensor) and tensor.device.type == "meta":
                self._put(tensor, tensor)
        return out

    def _put(self, tensor: Tensor, on_device: Tensor) -> None:
        self._mark(on_device, "input", f"host.{len(self._moved)}")
        self._moved[id(tensor)] = tensor, on_device
