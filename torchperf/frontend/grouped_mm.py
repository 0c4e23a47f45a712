"""A meta rule for `aten._grouped_mm` that takes any dtype and any stride: torch's own refuses all but aligned bf16."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_library = torch.library.Library("aten", "IMPL")


def _grouped_mm(mat1: Tensor, mat2: Tensor, offs: Any = None, bias: Any = None, out_dtype: Any = None) -> Tensor:
    """[rows, k] x [groups, k, n] -> [rows, n]; [k-rows, m]^T x [k-rows, n] -> [groups, m, n]; 3-D x 3-D as bmm."""
    if mat1.dim() == 2 and mat2.dim() == 2:
        shape = [offs.shape[0], mat1.shape[0], mat2.shape[1]]
    elif mat1.dim() == 2:
        shape = [mat1.shape[0], mat2.shape[2]]
    elif mat2.dim() == 2:
        shape = [mat1.shape[1], mat2.shape[1]]
    else:
        shape = [mat1.shape[0], mat1.shape[1], mat2.shape[2]]
    return mat1.new_empty(shape, dtype=out_dtype or mat1.dtype)


def install() -> None:
    """Put the rule in the place of torch's, once a process."""
    global _installed
    if not _installed:
        _library.impl("_grouped_mm", _grouped_mm, "Meta", allow_override=True)
        _installed = True


_installed = False
