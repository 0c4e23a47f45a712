"""Which slots of which blocks are the same storage: slots that some segments tie share one class.

Every layer calls the same blocks, so all layers share one plan: a class stands for the storage of each of them.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..graph.graph import Graph, Parameter
from ..graph.tensor import Value

Key = tuple[int, int, tuple[int, ...], tuple[int, ...]]  # (class, offset, shape, strides)


@dataclass(frozen=True, slots=True)
class Classes:
    """`of[block][slot]` is the slot's class; `parameter[class]` the first parameter of that class,
    `copies[class]` how many parameters it stands for."""

    of: tuple[tuple[int, ...], ...]
    parameter: dict[int, Parameter]
    name: dict[int, str]
    kind: dict[int, str]
    copies: dict[int, int]

    def key(self, block: int, value: Value) -> Key:
        """What a value is: two ops that use the same key use the same elements of the same storage."""
        shape, strides = value.shape, value.strides
        if 1 in shape:  # the stride of a size of 1 means nothing
            strides = tuple(0 if n == 1 else s for n, s in zip(shape, strides, strict=True))
        return (self.of[block][value.slot], value.offset, shape, strides)  # type: ignore[return-value]


def classes(graph: Graph) -> Classes:
    """The classes of a graph's storages."""
    base, total = [], 0
    for block in graph.blocks:
        base.append(total)
        total += len(block.storages)
    parent = list(range(total))

    def find(x: int) -> int:
        while parent[x] != x:
            parent[x] = parent[parent[x]]
            x = parent[x]
        return x

    first: dict[int, int] = {}
    pairs: set[tuple[int, int]] = set()
    for segment in graph.segments:
        start = base[segment.block]
        slots = dict(zip(segment.storages, range(start, start + len(segment.storages)), strict=True))
        for storage in first.keys() & slots.keys():
            if first[storage] != slots[storage]:
                pairs.add((first[storage], slots[storage]))
                slots[storage] = first[storage]
        first.update(slots)
    for a, b in pairs:
        parent[find(a)] = find(b)
    of = tuple(
        tuple(find(start + slot) for slot in range(len(b.storages)))
        for start, b in zip(base, graph.blocks, strict=True)
    )
    owner = {p.storage: p for p in (*graph.facts.buffers, *graph.facts.parameters) if p.storage >= 0}
    parameter: dict[int, Parameter] = {}
    copies: dict[int, int] = {}
    for storage in [s for s in first if s in owner]:
        cls = find(first[storage])
        parameter.setdefault(cls, owner[storage])
        copies[cls] = copies.get(cls, 0) + 1
    name: dict[int, str] = {}
    kind: dict[int, str] = {}
    for b, block in enumerate(graph.blocks):
        for slot, found in enumerate(block.storages):
            if found.name is not None:
                name.setdefault(of[b][slot], found.name)
            if found.kind != "activation":
                kind.setdefault(of[b][slot], found.kind)
    return Classes(of, parameter, name, kind, copies)


def contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of a dense row-major tensor (0 for a size of 1)."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(0 if size == 1 else step)
        step *= size
    return tuple(reversed(strides))


def memory_order(shape: tuple[int, ...], strides: tuple[int, ...]) -> list[int] | None:
    """The dims from the slowest in memory to the fastest, without those of size 1; None where there are gaps."""
    order = sorted((j for j, n in enumerate(shape) if n != 1), key=lambda j: -strides[j])
    step = 1
    for j in reversed(order):
        if strides[j] != step:
            return None
        step *= shape[j]
    return order
