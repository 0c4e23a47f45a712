"""What is answered where a model asks for the data of a tensor, which the meta device does not have.

A bool is answered and told as a guess. Where a mask picks rows, the number of rows is data and is refused, since a
wrong one would be lost silently (experts that pick their tokens), but in modules that are known to drop padding, of
which the inputs made here have none. Writing through a mask needs no number, and its gradient reads as many rows as
the mask has at most.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten
ITEM = aten._local_scalar_dense.default
TESTS = frozenset({aten.equal.default, aten.is_nonzero.default})
COPY = aten._to_copy.default
READ, WRITTEN = aten.index.Tensor, frozenset({aten.index_put.default, aten.index_put_.default})

# class of the module that asks -> what `.item()` of a bool is there
BOOLS: dict[str, tuple[bool, str]] = {
    "LongformerEncoder": (False, "no token attends to all others"),
    "LEDEncoder": (False, "no token attends to all others"),
}

# class of the module whose masks pick all -> the integer that it counts with them, and what both mean
WHOLE: dict[str, tuple[int, str]] = dict.fromkeys(
    ("Idefics2Model", "Idefics3Model", "SmolVLMModel"), (1, "one image a sample, none of them padding")
)


def masks(indices: Sequence[Tensor | None]) -> list[int]:
    """Positions of the bool masks among the indices of an index op, where there is no data to read them with."""
    return [i for i, t in enumerate(indices) if t is not None and t.dtype is torch.bool and t.device.type == "meta"]


def to_host(tensor: Tensor, kwargs: Mapping[str, Any]) -> bool:
    """Whether a copy reads a tensor that has no data, as `.tolist()` does."""
    return tensor.is_meta and str(kwargs.get("device")) == "cpu"


def picked(source: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
    """source[.., mask, ..] where the mask picks all: the dims that the mask covers become one."""
    (at,) = masks(indices)
    mask = indices[at]
    assert mask is not None
    lead, rest = source.shape[:at], source.shape[at + mask.dim() :]
    return source.new_empty((*lead, mask.numel(), *rest))


def written(func: Any, target: Tensor) -> Tensor:
    """What writing through a mask returns: the target itself, or another of its kind."""
    return target if func is aten.index_put_.default else torch.empty_like(target)
