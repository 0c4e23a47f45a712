"""A model with its layer lists cut short: it shows every kind of layer, and is captured in a fraction of the time."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

from torch import nn

from . import fold
from .tape import Tape


def lengths(tape: Tape, cut: list[fold.Run], layers: dict[str, str]) -> Iterator[int]:
    """Numbers of layers to try, fewest first; 0 stands for all of them."""
    position: dict[str, int] = {}
    count: dict[str, int] = {}
    for unit, parent in layers.items():
        position[unit] = count.get(parent, 0)
        count[parent] = position[unit] + 1
    longest = max(count.values(), default=0)
    if longest > 2:
        first_seen: dict[Any, int] = {}
        for run in cut:
            if run.unit and position[run.unit] < count[layers[run.unit]] - 1:
                sig = fold.signature(tape, run)
                first_seen[sig] = min(first_seen.get(sig, longest), position[run.unit])
        least = max(first_seen.values(), default=0) + 2
        for keep in (least, least + 1, 2 * least + 1):
            if keep < longest:
                yield keep
    yield 0


@contextlib.contextmanager
def truncated(module: nn.Module, layers: dict[str, str], keep: int) -> Iterator[None]:
    """The module with every layer list cut to its first `keep` layers (0: untouched)."""
    lists = {path: module.get_submodule(path) for path in set(layers.values())} if keep else {}
    whole = {path: child._modules for path, child in lists.items()}
    try:
        for path, child in lists.items():
            child._modules = OrderedDict(list(whole[path].items())[:keep])
        yield
    finally:
        for path, child in lists.items():
            child._modules = whole[path]
