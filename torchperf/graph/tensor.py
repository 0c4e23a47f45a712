"""Values and storages: what an op reads and writes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from .dtype import nbytes
from .errors import TorchperfError
from .expr import LARGEST, Dim, bind_dim, too_large


@dataclass(frozen=True, slots=True)
class Storage:
    """A piece of device memory, by its slot in a block.

    nbytes   bytes allocated
    kind     param | buffer | input | activation | grad | cache (keys, values, latents) | state (recurrent, convolution)
    name     of the parameter (also for its gradient), buffer or input; `*` stands for the layer; else None
    """

    nbytes: Dim
    kind: str
    name: str | None = None


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor seen by an op: a strided view of one storage of the block (`slot`). Strides and offset in elements."""

    slot: int
    dtype: str
    shape: tuple[Dim, ...]
    strides: tuple[Dim, ...]
    offset: Dim = 0

    @property
    def numel(self) -> int:
        """Number of elements; the value must be bound."""
        return math.prod(self.shape)  # type: ignore[arg-type]

    @property
    def nbytes(self) -> int:
        """Bytes that reading each distinct element once moves (an expanded dim, of stride 0, counts once)."""
        if 0 in self.strides:
            distinct = math.prod(d for d, s in zip(self.shape, self.strides, strict=True) if s != 0)  # type: ignore[misc]
            return nbytes(distinct, self.dtype)
        return nbytes(self.numel, self.dtype)

    def bind(self, sizes: Mapping[str, int]) -> Value:
        """The same value with integer dims; raises TorchperfError where it has none, or too many elements."""
        shape = tuple(d if isinstance(d, int) else d(sizes) for d in self.shape)
        if math.prod(shape) > LARGEST:
            raise too_large(f"the number of elements of a tensor of shape {list(shape)}", sizes)
        if min(shape, default=0) < 0:
            raise TorchperfError(f"a tensor has shape {list(shape)} at {dict(sizes)}", hint="give larger sizes")
        return Value(
            self.slot,
            self.dtype,
            shape,
            tuple(d if isinstance(d, int) else d(sizes) for d in self.strides),
            bind_dim(self.offset, sizes),
        )
