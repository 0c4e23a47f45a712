"""Which ranks hold which part: chosen leaves as bits of one mesh axis.

A mesh axis of size n is one bit, or a few (sub-axes, their sizes multiply to n): a leaf is split over a set of bits.
With more ranks than KV heads, KV heads take one sub-axis and the query group the other, so K and V are held twice.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from .algebra import Dim, Dims, Factor, flatten, leaves

Held = tuple[int, bool]  # (mask of the bits that split a value, whether it is split twice over one of them)
WHOLLY: Held = (0, False)


@dataclass(slots=True)
class Split:
    """A choice of leaves for one mesh axis.

    axis       its name, "tp"
    sizes      of the sub-axes, bit 0 first; most plans have one
    chosen     id of a leaf -> (leaf, mask)
    sequence   the leaves that split what lies between the split regions (sequence parallel); none without it
    regather   backward gathers again what forward gathered, for dW; else the gathered value is kept (the runtime's way)
    norm_gradients  gradients of parameters that every rank holds are summed here; else they stay Partial
    routed     of each block, the ops that keep to the rank's own rows of experts, though they mix them (expert_local)
    complete   classes of storages whose sums over the rank's own rows stand: experts' gradients
    known      id of dims, or of a dim -> ids of its leaves, where that was worked out before
    """

    axis: str
    sizes: tuple[int, ...]
    chosen: dict[int, tuple[Factor, int]] = field(default_factory=dict)
    sequence: tuple[Factor, ...] = ()
    regather: bool = True
    norm_gradients: bool = True
    routed: tuple[frozenset[int], ...] = ()
    complete: frozenset[int] = frozenset()
    known: dict[int, frozenset[int]] = field(default_factory=dict, repr=False)
    memo: dict[int, Held] = field(default_factory=dict, repr=False)
    lengths: dict[tuple[int, int, bool], int] = field(default_factory=dict, repr=False)

    @property
    def full(self) -> int:
        """All bits."""
        return (1 << len(self.sizes)) - 1

    @property
    def ranks(self) -> int:
        return math.prod(self.sizes)

    @property
    def masks(self) -> tuple[tuple[int, int], ...]:
        """(id of a leaf, its mask) of those that are split over some bits only."""
        if len(self.sizes) == 1:
            return ()
        return tuple(sorted((key, mask) for key, (_, mask) in self.chosen.items()))

    def degree(self, mask: int) -> int:
        """Over how many ranks a mask splits."""
        if mask == 0:
            return 1
        if len(self.sizes) == 1:
            return self.sizes[0]
        return math.prod(size for bit, size in enumerate(self.sizes) if mask >> bit & 1)

    def held(self, dims: Dims) -> Held:
        """How a value with these dims is split."""
        known = self.memo.get(id(dims))
        if known is None:
            inside = self.known.get(id(dims))
            if inside is not None and inside.isdisjoint(self.chosen):
                self.memo[id(dims)] = WHOLLY
                return WHOLLY
            mask, twice = 0, False
            for dim in dims:
                own, double = self.of(dim)
                twice = twice or double or bool(mask & own)
                mask |= own
            known = self.memo[id(dims)] = (mask, twice)
        return known

    def of(self, dim: Dim) -> Held:
        """How one dim is split. A sum is split where any segment is: the others stay whole on every rank."""
        inside = self.known.get(id(dim))
        if inside is not None and inside.isdisjoint(self.chosen):
            return WHOLLY
        mask, twice = 0, False
        for factor in flatten(dim):
            own = 0
            if factor.kind == "sum":
                for segment in factor.parts:
                    part, double = self.of(segment)
                    own |= part
                    twice = twice or double
            elif id(factor) in self.chosen:
                own = self.chosen[id(factor)][1]
            twice = twice or bool(mask & own)
            mask |= own
        return mask, twice

    def mixed(self, dim: Dim) -> bool:
        """Whether a sum in the dim is split in some segments and whole in others."""
        inside = self.known.get(id(dim))
        if inside is not None and inside.isdisjoint(self.chosen):
            return False
        for factor in flatten(dim):
            if factor.kind == "sum":
                masks = {self.of(segment)[0] for segment in factor.parts}
                if len(masks) > 1 or any(self.mixed(segment) for segment in factor.parts):
                    return True
        return False

    def mask_of(self, dims: Dims) -> int:
        """The bits that any of these dims is split over."""
        mask = 0
        for dim in dims:
            mask |= self.of(dim)[0]
        return mask

    def local(self, dim: Dim, whole: int = 0, sequence: bool = False) -> int:
        """The length of a dim on one rank; bits in `whole` do not split; `sequence`: the sequence leaf does."""
        key = (id(dim), whole, sequence)
        found = self.lengths.get(key)
        if found is not None:
            return found
        length = 1
        for factor in flatten(dim):
            if factor.kind == "sum":
                length *= sum(self.local(segment, whole, sequence) for segment in factor.parts)
            else:
                size = factor.size
                if id(factor) in self.chosen:
                    size //= self.degree(self.chosen[id(factor)][1] & ~whole)
                elif sequence and self.is_sequence(factor):
                    size //= self.ranks
                length *= size
        if id(dim) in self.known:  # a list that the program holds: its id is nobody else's
            self.lengths[key] = length
        return length

    def times_sequence(self, dims: Dims) -> int:
        """How often a sequence leaf occurs in a value."""
        if not self.sequence:
            return 0
        return sum(self.is_sequence(leaf) for dim in dims for leaf in leaves(dim))

    def is_sequence(self, leaf: Factor) -> bool:
        """Whether this leaf is one of the sequences."""
        return any(leaf is known for known in self.sequence)
