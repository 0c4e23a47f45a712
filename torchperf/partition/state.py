"""How a storage stands at a moment, beyond what its dims say, and what placement found for one block."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..graph.tensor import Value
from .algebra import Dims
from .collective import Collective


@dataclass(frozen=True, slots=True)
class State:
    """A storage that is not simply whole, or split as its dims say.

    partial   bits over which a sum is still to be done: each rank holds a part of the sum (Partial)
    sequence  split along the sequence leaf
    ragged    bits over which each rank has only the rows of its own experts
    """

    partial: int = 0
    sequence: bool = False
    ragged: int = 0

    def __bool__(self) -> bool:
        return bool(self.partial or self.ragged or self.sequence)


WHOLE = State()
Written = tuple[Value, Dims]  # the value by which a storage was last written, and its dims
Crossing = tuple[State, Written]


@dataclass(slots=True)
class OpPlaced:
    """The states of one op's operands as it runs; `whole` are the bits over which its inputs were gathered."""

    inputs: tuple[State, ...]
    outputs: tuple[State, ...]
    whole: int = 0


@dataclass(frozen=True, slots=True)
class Step:
    """What an op did that met no state: the same wherever the same leaves of it are split."""

    placed: OpPlaced
    collectives: tuple[Collective, ...]
    conflicts: tuple[str, ...]
    flops: float
    moved: float
    rows: frozenset[int]


@dataclass(slots=True)
class BlockPlaced:
    """One block: states at its ends by slot, its collectives, and what its split ops cost less than whole.

    kept  slots of which it reads the whole that a forward block gathered, and kept for it
    """

    entry: dict[int, Crossing]
    exit: dict[int, Crossing | None] = field(default_factory=dict)
    collectives: list[Collective] = field(default_factory=list)
    conflicts: list[str] = field(default_factory=list)
    ops: list[OpPlaced | None] = field(default_factory=list)
    kept: set[int] = field(default_factory=set)
    flops: float = 0.0
    moved: float = 0.0
