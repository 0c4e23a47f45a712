"""One collective that placement puts before an op (or at the end of a block)."""

from __future__ import annotations

from dataclasses import dataclass

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")


@dataclass(frozen=True, slots=True)
class Collective:
    """`kind` over `ranks` ranks of the axis, before op `op` of block `block`, in each of its `count` segments.

    slot    storage that it completes
    part    shape of what one rank holds of it: before an all_gather, after a reduce_scatter; else `shape`
    shape   of the value that is whole afterwards (all_reduce, all_gather) or before (reduce_scatter), local otherwise
    nbytes  of that value: the whole tensor of the collective on one rank's side
    role    activation | statistic (a row's sum or maximum) | gradient (of a parameter) | regather (again, in backward)
            | reshape (a split dim that an op needs whole)
    cause   the op that made it necessary
    """

    kind: str
    axis: str
    ranks: int
    mask: int
    phase: str
    block: int
    op: int
    count: int
    slot: int
    shape: tuple[int, ...]
    part: tuple[int, ...]
    dtype: str
    nbytes: int
    role: str
    cause: str

    @property
    def sent(self) -> float:
        """Bytes that a rank sends, on a ring."""
        whole = self.nbytes * (self.ranks - 1) / self.ranks
        return 2 * whole if self.kind == "all_reduce" else whole
