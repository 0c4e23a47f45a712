"""The tensor that one rank holds of a value: its shape, its strides in the rank's own storage, its bytes."""

from __future__ import annotations

import math

from ..graph.tensor import Value
from .algebra import Dim, Dims, flatten, leaves
from .masks import Split
from .state import State
from .storages import memory_order


class LocalValues:
    """Local shapes under one split. `rows` are the leaves of rows that belong to experts."""

    def __init__(self, split: Split, rows: set[int]) -> None:
        self.split, self.rows = split, rows

    def shape(self, dims: Dims, state: State, whole: int = 0) -> tuple[int, ...]:
        """Lengths on one rank; the rows of experts at their mean over ranks."""
        out = []
        left = self.split.degree(state.ragged)
        for dim in dims:
            length = self.split.local(dim, whole, state.sequence)
            if left > 1 and any(id(leaf) in self.rows for leaf in leaves(dim)):
                length, left = max(1, length // left), 1
            out.append(length)
        return tuple(out)

    def value(self, value: Value, dims: Dims, state: State, flat: Dim | None, whole: int = 0) -> Value:
        """The local value; `flat` are the factors of its storage in the order of memory, where they are known."""
        shape = self.shape(dims, state, whole)
        if shape == value.shape and (
            flat is None or self._length(flat, state, whole) == math.prod(f.size for f in flat)
        ):
            return value
        strides = self.strides(value, shape, state, flat, whole)
        offset = int(value.offset)  # type: ignore[arg-type]
        if offset and flat is not None:
            offset = self._offset(flat, offset, state, whole)
        elif offset and value.numel:
            offset = _along(value, shape, strides, offset)
        return Value(value.slot, value.dtype, shape, strides, offset)

    def strides(
        self, value: Value, shape: tuple[int, ...], state: State, flat: Dim | None, whole: int
    ) -> tuple[int, ...]:
        """Dense where the value was dense; over a gap, what the faster factors of the storage take on this rank."""
        strides: list[int] = [int(s) for s in value.strides]  # type: ignore[arg-type]
        order = sorted((j for j in range(len(shape)) if strides[j]), key=lambda j: (strides[j], -j))
        bounds = self._bounds(flat, state, whole) if flat is not None else {}
        out = [0] * len(shape)
        reach, local_reach = 1, 1
        for j in order:
            if strides[j] == reach:
                out[j] = local_reach
            else:
                out[j] = bounds.get(strides[j], max(1, strides[j] * local_reach // max(reach, 1)))
            reach = strides[j] * int(value.shape[j])  # type: ignore[arg-type]
            local_reach = out[j] * shape[j]
        return tuple(out)

    def _bounds(self, flat: Dim, state: State, whole: int) -> dict[int, int]:
        """Stride in the whole storage -> stride in the rank's, at every boundary between factors."""
        found = {1: 1}
        reach, local = 1, 1
        for factor in reversed(flatten(flat)):
            reach *= factor.size
            plain = factor.kind == "leaf" and id(factor) not in self.split.chosen and not state.sequence
            local *= factor.size if plain else self.split.local([factor], whole, state.sequence)
            found[reach] = local
        return found

    def _offset(self, flat: Dim, offset: int, state: State, whole: int) -> int:
        """Where an element of the whole storage lies in the rank's; of a split factor, its share of the way."""
        found, factors = 0, flatten(flat)
        for j, factor in enumerate(factors):
            inner = math.prod(f.size for f in factors[j + 1 :])
            at, offset = divmod(offset, inner)
            local = self._length(factors[j + 1 :], state, whole)
            if factor.kind != "sum":
                found += at * self.split.local([factor], whole, state.sequence) // factor.size * local
                continue
            for segment in factor.parts:
                size = math.prod(f.size for f in segment)
                if at < size:
                    found += self._offset(segment, at, state, whole) * local
                    break
                at -= size
                found += self._length(segment, state, whole) * local
        return found

    def _length(self, flat: Dim, state: State, whole: int) -> int:
        return self.split.local(flat, whole, state.sequence)


def _along(value: Value, shape: tuple[int, ...], strides: tuple[int, ...], offset: int) -> int:
    """An offset as steps along the value's dims, each shortened as its dim is."""
    found = 0
    for j in sorted(range(len(shape)), key=lambda j: -int(value.strides[j])):  # type: ignore[arg-type]
        step, size = int(value.strides[j]), int(value.shape[j])  # type: ignore[arg-type]
        if step:
            found += offset // step * shape[j] // size * strides[j]
            offset %= step
    return found


def flat_factors(value: Value, dims: Dims) -> Dim | None:
    """The factors of a dense value from the slowest in memory to the fastest; None where it has gaps."""
    order = memory_order(value.shape, value.strides)  # type: ignore[arg-type]
    return None if order is None or value.offset else [factor for j in order for factor in dims[j]]
