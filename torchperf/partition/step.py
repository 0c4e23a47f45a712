"""One op met by its factor rule: the dims of what it reads, and what the rule says of what it writes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from ..graph.op import Op
from ..graph.tensor import Value
from .algebra import Clash, Dim, Dims, Factor, cut, fresh, unify

NONLINEAR, LINEAR, ADDITIVE, PRODUCT = "nonlinear", "linear", "additive", "product"


@dataclass(slots=True)
class OpFactors:
    """What placement needs to know of an op.

    inputs, outputs   dims, as lists of factors
    contracted        of each output: the dims summed over to make it
    opaque            dims along which the op needs everything (sort, attention's keys)
    statistic         (dim, bytes): sharded, it costs a small all-reduce of a row statistic (softmax, norms)
    linear            what a sum still to be done (Partial) may do here:
                      nonlinear: nothing; linear: pass; additive: pass beside others; product: pass in one operand
    through           operand indices that may be Partial, where `linear` is product or linear
    kind              matmul | lookup | view | create | other
    known             False where no rule met the op: its outputs have factors of their own
    """

    op: Op
    inputs: list[Dims]
    outputs: list[Dims] = field(default_factory=list)
    contracted: list[Dims] = field(default_factory=list)
    opaque: Dims = field(default_factory=list)
    statistic: list[tuple[Dim, int]] = field(default_factory=list)
    linear: str = NONLINEAR
    through: tuple[int, ...] = ()
    kind: str = "other"
    known: bool = True
    ragged: Dim | None = None  # _grouped_mm: the rows that belong to experts


class Step:
    """The context in which a rule runs."""

    def __init__(
        self,
        facts: OpFactors,
        kinds: Sequence[str],
        note: Callable[[str], None],
        hint: Callable[[Dim, str], None],
        tie: Callable[[int, Dim], None],
    ) -> None:
        self.facts = facts
        self.tie = tie  # (input i, dim): the dim is the same wherever that tensor is read
        self.kinds = kinds  # of each input's storage: param | buffer | input | activation | grad
        self.op = facts.op
        self.note = note
        self.hint = hint
        facts.outputs = [[] for _ in facts.op.outputs]
        facts.contracted = [[] for _ in facts.op.outputs]

    def dims(self, i: int) -> Dims:
        """The dims of input i."""
        return self.facts.inputs[i]

    def index(self, operand: str) -> int | None:
        """Where the operand of that schema name stands, or None."""
        return self.op.operands.index(operand) if operand in self.op.operands else None

    def of(self, operand: str) -> Dims | None:
        """The dims of the operand of that schema name, or None."""
        i = self.index(operand)
        return None if i is None else self.facts.inputs[i]

    def shape(self, i: int) -> tuple[int, ...]:
        return self.op.inputs[i].shape  # type: ignore[return-value]

    def out_shape(self, j: int = 0) -> tuple[int, ...]:
        return self.op.outputs[j].shape  # type: ignore[return-value]

    def put(self, j: int, dims: Dims, contracted: Sequence[Dim] = ()) -> None:
        """Output j has these dims; to make it the op sums over `contracted`."""
        self.facts.outputs[j] = dims
        self.facts.contracted[j] = list(contracted)

    def fresh(self, shape: Iterable[int]) -> Dims:
        return [fresh(size) for size in shape]

    def same(self, a: Dim, b: Dim) -> bool:
        """Two dims are the same; a clash is noted, and both keep their factors."""
        try:
            unify(a, b)
        except Clash as clash:
            self.note(str(clash))
            return False
        return True

    def cut(self, dim: Dim, at: list[int]) -> list[Dim] | None:
        """The pieces of a dim, or None (noted) where it cannot be cut there."""
        try:
            return cut(dim, at)
        except Clash as clash:
            self.note(str(clash))
            return None

    def broadcast(self, operands: Sequence[int], shape: tuple[int, ...]) -> Dims:
        """The dims of elementwise work over these inputs: aligned from the right, size 1 stretched."""
        out: Dims = []
        rank = len(shape)
        for j, size in enumerate(shape):
            found: Dim | None = None
            for i in operands:
                k = j - rank + len(self.facts.inputs[i])
                if k >= 0 and self.shape(i)[k] == size and size != 1:
                    if found is None:
                        found = self.facts.inputs[i][k]
                    else:
                        self.same(found, self.facts.inputs[i][k])
            out.append(found if found is not None else fresh(size))
        return out

    def dim_attr(self, name: str = "dim", default: int = 0, rank: int | None = None) -> int:
        """A dim argument, counted from the left."""
        rank = len(self.shape(0)) if rank is None else rank
        return int(self.op.attr(name, default)) % max(rank, 1)

    def dims_attr(self, name: str = "dim") -> list[int]:
        """A list of dims, counted from the left; all of them where none is named."""
        rank = len(self.shape(0))
        named = self.op.attr(name)
        if named is None or named == ():
            return list(range(rank))
        return [int(d) % max(rank, 1) for d in (named if isinstance(named, tuple) else (named,))]


def is_float(value: Value) -> bool:
    """Whether the tensor holds numbers that are computed with, not indices or masks."""
    return value.dtype not in ("i64", "i32", "i16", "i8", "u8", "u16", "u32", "u64", "bool")


Rule = Callable[[Step], None]
__all__ = ["ADDITIVE", "LINEAR", "NONLINEAR", "PRODUCT", "Factor", "OpFactors", "Rule", "Step", "is_float"]
