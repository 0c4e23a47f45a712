"""The ops that an expert's owner runs: those on the way from one product of experts to another, rows in their place.

Forward, backward and a recompute are blocks of their own; what one of them made inside, another reads inside.
"""

from __future__ import annotations

from ..graph.op import Op
from ..graph.tensor import Value
from .algebra import Dims
from .expert_domain import Experts, products, unsplittable
from .factors import Factors, iterate
from .prepare import is_view
from .rules import base_name
from .step import OpFactors

ROUNDS = 4  # forward -> backward -> what forward makes for backward alone -> again
Seen = tuple[int, tuple[object, ...], tuple[object, ...], object]


def looks(op: Op) -> bool:
    """Whether the op only shows what it reads in another way; a collective in place does more."""
    return is_view(op) and not op.name.startswith("torchperf.")


def seen(value: Value) -> Seen:
    """A storage as one view shows it."""
    return (value.slot, value.shape, value.strides, value.offset)


def find_experts(factors: Factors) -> Experts:
    """The experts of a program and the ops that their owners run.

    Raises TorchperfError where there are none, or in a form that cannot be split: the op and its module are named.
    """
    experts = products(factors)
    _walk(experts)
    _own(experts)
    return experts


def _walk(experts: Experts) -> None:
    """Fill in `inside`, `idle` and `home`."""
    blocks = range(len(experts.factors.blocks))
    experts.inside, experts.idle = [set() for _ in blocks], [set() for _ in blocks]
    needed: set[int] = set()  # classes with rows that are read inside
    for _ in range(ROUNDS):
        before = (len(experts.home), len(needed), sum(map(len, experts.inside)))
        for b in blocks:
            _Walk(experts, b, needed).run()
        if before == (len(experts.home), len(needed), sum(map(len, experts.inside))):
            break


class _Walk:
    def __init__(self, experts: Experts, b: int, needed: set[int]) -> None:
        self.experts, self.b, self.needed = experts, b, needed
        self.rows, self.forced = experts.rows, experts.forced[b]
        self.of = experts.factors.classes.of[b]
        self.records = experts.factors.blocks[b]
        self.carried = {slot for slot, c in enumerate(self.of) if c in experts.home}
        self.alone = set(self.carried)  # of the rows of products, those that nothing from elsewhere has met
        self.ahead: set[int] = set()  # ops that a row reaches from a product
        self.joins: set[int] = set()  # of those, the ones after which there is less to send
        self.unknown: set[int] = set()

    def run(self) -> None:
        if not self.forced and not self.carried:
            return
        for i, facts in enumerate(self.records):
            self._forward(i, facts)
        self._backward()
        for i in self.experts.inside[self.b]:
            facts = self.records[i]
            if not looks(facts.op):
                self.needed.update(self.of[slot] for slot in self._read(facts))
                self.experts.home.update(self.of[slot] for slot in self._written(facts))

    def _read(self, facts: OpFactors) -> list[int]:
        """The slots of rows that the op reads; a new tensor of the same shape reads none."""
        if facts.kind == "create":
            return []
        pairs = zip(facts.op.inputs, facts.inputs, strict=True)
        return [v.slot for v, dims in pairs if self.rows.holds(dims) and self.of[v.slot] not in self.experts.named]

    def _written(self, facts: OpFactors) -> list[int]:
        return [v.slot for v, dims in zip(facts.op.outputs, facts.outputs, strict=True) if self.rows.holds(dims)]

    def _narrows(self, facts: OpFactors) -> bool:
        """Whether the op writes fewer bytes of rows than it reads."""
        rows = (facts.inputs, facts.op.inputs), (facts.outputs, facts.op.outputs)
        read, written = (
            sum(v.nbytes for v, dims in zip(values, every, strict=True) if self.rows.holds(dims))
            for every, values in rows
        )
        return written < read

    def _forward(self, i: int, facts: OpFactors) -> None:
        op = facts.op
        if i in self.forced:
            self.ahead.add(i)
            self.carried.update(self._written(facts))
            self.alone.update(self._written(facts))
            return
        rows = self._read(facts)
        derived = [slot for slot in rows if slot in self.carried]
        passes = bool(derived) and facts.known and not self.rows.lost(facts) and bool(self._written(facts))
        if derived and not facts.known:
            self.unknown.add(i)
        if passes:
            self.ahead.add(i)
        if looks(op):
            return
        if derived and any(self.experts.has_leaf(dims) and not self.rows.holds(dims) for dims in facts.outputs):
            self.joins.add(i)  # a sum over an expert's rows: the gradient of its bias
        if passes:
            self.carried.update(self._written(facts))
        else:
            self.carried.difference_update(v.slot for v in op.outputs)
        alone = passes and self.alone.issuperset(rows)
        self.alone.difference_update(v.slot for v in op.outputs)
        if alone:
            self.alone.update(self._written(facts))
            if len(set(rows)) > 1 or self._narrows(facts):
                self.joins.add(i)

    def _backward(self) -> None:
        inside: set[int] = set()
        wanted: set[int] = set()
        sides: dict[Seen, set[bool]] = {}
        idle = self.experts.idle[self.b] = set()
        for i in range(len(self.records) - 1, -1, -1):
            facts = self.records[i]
            op = facts.op
            made = {value.slot for value in op.outputs}
            if looks(op):
                found = set().union(*(sides.get(seen(v), set()) for v in op.outputs))
                if not found:
                    idle.add(i)
                    continue
                if found == {True}:
                    inside.add(i)
                sides.setdefault(seen(op.inputs[0]), set()).add(found == {True})
                continue
            asked = i in self.ahead and any(self.of[slot] in self.needed for slot in made)
            if i in self.forced or i in self.joins or asked or (i in self.ahead and made & wanted):
                inside.add(i)
            elif i in self.unknown and made & wanted:
                raise unsplittable(facts, f"no factor rule for `{base_name(op.name)}`, which stands between products")
            wanted -= made
            if i in inside:
                wanted.update(self._read(facts))
            for value in op.inputs if facts.kind != "create" else ():
                sides.setdefault(seen(value), set()).add(i in inside)
        self.experts.inside[self.b] = inside


def _own(experts: Experts) -> None:
    """What the ops inside use that has a slice for each expert and no rows: weights, biases and their gradients."""
    factors, of = experts.factors, experts.factors.classes.of
    kind, name = factors.classes.kind, factors.classes.name
    for b, records in enumerate(factors.blocks):
        for i in experts.inside[b]:
            for value, dims in _operands(records[i]):
                if experts.has_leaf(dims) and not experts.rows.holds(dims):
                    if kind.get(of[b][value.slot]) in ("buffer", "input"):
                        raise unsplittable(records[i], "a buffer or an input has a slice for each of them")
                    experts.local.add(of[b][value.slot])
    before = -1
    while before != len(experts.local):  # casts of weights and of gradients, from both ends
        before = len(experts.local)
        for b, block in enumerate(factors.graph.blocks):
            gradients = {s.name for c, s in zip(of[b], block.storages, strict=True) if c in experts.local} - {None}
            for slot, storage in enumerate(block.storages):
                if storage.kind == "grad" and storage.name in gradients:
                    experts.local.add(of[b][slot])
        for b, _, facts in iterate(factors):
            every = _operands(facts)
            if any(of[b][value.slot] in experts.local for value, _ in every):
                experts.local.update(
                    of[b][value.slot]
                    for value, dims in every
                    if experts.has_leaf(dims) and not experts.rows.holds(dims)
                )
    experts.parameters = {name[c] for c in experts.local if kind.get(c) == "param" and c in name}


def _operands(facts: OpFactors) -> list[tuple[Value, Dims]]:
    return list(zip((*facts.op.inputs, *facts.op.outputs), (*facts.inputs, *facts.outputs), strict=True))
