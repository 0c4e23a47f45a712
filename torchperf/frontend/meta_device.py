"""Code that names a device runs on meta instead: `device="cuda"`, `.cuda()`, `.to("cuda:0")`, `.cpu()`.

The functions are wrapped in place (see patches.py for why not a mode). A factory that is told no device makes a meta
tensor too, but for `linspace` and `logspace`: constructors read drop-path rates out of these.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
import torch.utils._device

FACTORIES = (
    "arange", "empty", "empty_like", "empty_strided", "eye", "full", "full_like", "linspace", "logspace", "ones",
    "ones_like", "rand", "rand_like", "randint", "randint_like", "randn", "randn_like", "randperm", "tensor",
    "as_tensor", "tril_indices", "triu_indices", "zeros", "zeros_like", "asarray", "hann_window", "normal", "range",
)  # fmt: skip
METHODS = ("new_empty", "new_full", "new_ones", "new_tensor", "new_zeros")


def _is_device(value: Any) -> bool:
    if isinstance(value, torch.device):
        return True
    if isinstance(value, str):
        return value.split(":")[0] in ("cuda", "cpu", "mps", "xpu", "hpu", "npu", "meta")
    return False


def _moved(function: Any) -> Any:
    name = getattr(function, "__name__", "on_meta")
    follows = name.endswith("_like") or name.startswith("new_") or name in ("linspace", "logspace", "as_tensor")

    def on_meta(*args: Any, **kwargs: Any) -> Any:
        if kwargs.get("device") is not None or not follows:
            kwargs["device"] = "meta"
        kwargs.pop("pin_memory", None)
        return function(*args, **kwargs)

    on_meta.__name__ = name
    return on_meta


def _to(function: Any) -> Any:
    def to(self: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("device") is not None:
            kwargs["device"] = "meta"
        is_int = args and isinstance(args[0], int) and not isinstance(args[0], bool)
        if args and (_is_device(args[0]) or is_int):
            args = ("meta", *args[1:])
        return function(self, *args, **kwargs)

    return to


def _stay(self: Any, *_args: Any, **_kwargs: Any) -> Any:
    return self.to("meta")


def _nothing(_function: Any) -> Any:
    return lambda *_args, **_kwargs: None


@contextlib.contextmanager
def everything_on_meta() -> Iterator[None]:
    """Every device named by the code inside is the meta device."""
    torch.utils._device._device_constructors()  # torch remembers its factories: it must not remember our wrappers
    replaced: list[tuple[Any, str, Any]] = []

    def replace(owner: Any, name: str, wrapper: Any) -> None:
        original = getattr(owner, name, None)
        if original is not None:
            replaced.append((owner, name, original))
            setattr(owner, name, wrapper(original) if wrapper is not _stay else _stay)

    try:
        for name in FACTORIES:
            replace(torch, name, _moved)
        for name in METHODS:
            replace(torch.Tensor, name, _moved)
        for owner in (torch.Tensor, torch.nn.Module):
            replace(owner, "to", _to)
            for name in ("cuda", "cpu"):
                replace(owner, name, _stay)
        replace(torch.Tensor, "pin_memory", _stay)
        for name in ("synchronize", "empty_cache", "reset_peak_memory_stats", "set_device", "manual_seed"):
            replace(torch.cuda, name, _nothing)
        yield
    finally:
        for owner, name, original in reversed(replaced):
            setattr(owner, name, original)
