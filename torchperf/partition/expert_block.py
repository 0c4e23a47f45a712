"""One block of an expert-parallel program: slices of experts, rows exchanged where they go to experts and come back.

A storage of rows has at most two forms at a time: the rank's own rows, and the rows of its experts. The one that an op
wrote keeps its slot; the other is made by an exchange the first time that an op asks for it, and later ops share it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from ..graph.dtype import nbytes
from ..graph.graph import Block
from ..graph.op import Attr, Op
from ..graph.tensor import Storage, Value
from .algebra import Dims, flatten
from .expert_domain import Experts, key, unsplittable
from .expert_walk import looks
from .local import _attr, _dense
from .local_values import LocalValues
from .masks import Split
from .state import WHOLE
from .step import OpFactors

ROLES = {True: "dispatch", False: "combine"}


@dataclass(slots=True)
class Shared:
    """What all blocks of one rewrite share. `available`: (class, inside) that a block exchanged for later ones."""

    experts: Experts
    ranks: int
    axis: str
    stride: int
    load: float
    available: set[tuple[int, bool]] = field(default_factory=set)
    split: Split = field(init=False)
    values: LocalValues = field(init=False)

    def __post_init__(self) -> None:
        chosen = {i: (leaf, 1) for i, leaf in self.experts.leaves.items()}
        self.split = Split(self.axis, (self.ranks,), chosen)
        self.values = LocalValues(self.split, set())


class ExpertBlock:
    """Rewrites block `b`.

    more      of each added slot: None, a storage of its own; or (slot, inside), that form of a slot, made before
    exports   (slot, inside) -> the slot with that form at the end of the block
    """

    def __init__(self, shared: Shared, b: int) -> None:
        self.shared, self.experts, self.b = shared, shared.experts, b
        factors = self.experts.factors
        self.block, self.records, self.of = factors.graph.blocks[b], factors.blocks[b], factors.classes.of[b]
        self.inside, self.idle = self.experts.inside[b], self.experts.idle[b]
        self.storages: list[Storage] = list(self.block.storages)
        self.more: list[tuple[int, bool] | None] = []
        self.exports: dict[tuple[int, bool], int] = {}
        self.forms: dict[int, dict[bool, int]] = {}  # slot -> inside -> slot of that form
        self.dense: dict[int, Value] = {}  # slot of a form -> its value, where what it was made of had a stride of 0
        self.maker: dict[int, tuple[Value, OpFactors]] = {}
        self.shrunk: dict[int, tuple[int, int]] = {}
        self.ops: list[Op] = []

    def run(self) -> Block:
        """The block of one rank."""
        home = {slot for slot, c in enumerate(self.of) if c in self.experts.home}
        if not self.inside and not home and self.experts.local.isdisjoint(self.of):
            return self.block
        self.forms = {slot: {True: slot} for slot in home}
        for i, facts in enumerate(self.records):
            self._op(i, facts)
        for slot, (whole, local) in self.shrunk.items():
            size = int(self.storages[slot].nbytes)  # type: ignore[arg-type]
            self.storages[slot] = replace(self.storages[slot], nbytes=-(-size * local // whole))
        if self.shared.load > 1:
            for slot in home:
                self._loaded(slot)
        for slot, forms in self.forms.items():
            for inside, copy in forms.items():
                if copy != slot:
                    self.exports[slot, inside] = copy
                    self.shared.available.add((self.of[slot], inside))
        return Block(self.block.module, self.block.phase, tuple(self.storages), tuple(self.ops))

    def _loaded(self, slot: int) -> None:
        storage = self.storages[slot]
        size = math.ceil(int(storage.nbytes) * self.shared.load)  # type: ignore[arg-type]
        self.storages[slot] = replace(storage, nbytes=size)

    def _op(self, i: int, facts: OpFactors) -> None:
        op, view = facts.op, looks(facts.op)
        inside = i in self.inside
        if i in self.idle:  # of whichever form there is
            inside = True in self.forms.get(op.inputs[0].slot, {})
        inputs = [
            self._read(facts, inside, value, dims, operand)
            for operand, value, dims in zip(op.operands, op.inputs, facts.inputs, strict=True)
        ]
        outputs = []
        for value, dims in zip(op.outputs, facts.outputs, strict=True):
            slot = self._write(facts, inside, view, value, dims)
            outputs.append(self._local(facts, inside, value, dims, slot))
        if inputs == list(op.inputs) and outputs == list(op.outputs) and not (inside and self.shared.load > 1):
            self.ops.append(op)
            return
        attrs = tuple((name, _attr(op, name, attr, outputs)) for name, attr in op.attrs)
        if inside and self.shared.load > 1:
            attrs = (*attrs, ("load", self.shared.load))
        self.ops.append(replace(op, inputs=tuple(inputs), outputs=tuple(outputs), attrs=attrs))

    def _read(self, facts: OpFactors, inside: bool, value: Value, dims: Dims, operand: str) -> Value:
        slot = value.slot
        if inside and operand == "offs":
            first, *rest = value.shape
            return replace(value, shape=(int(first) // self.shared.ranks, *rest))  # type: ignore[arg-type]
        if facts.kind == "create":  # a shape is read, no data: either form will do
            forms = self.forms.get(slot, {inside: slot})
            inside = inside if inside in forms else not inside
            return self._local(facts, inside, value, dims, forms[inside])
        exchanged = slot in self.forms or (
            inside and self.experts.rows.holds(dims) and self.of[slot] not in self.experts.named
        )
        if exchanged:
            slot = self._form(facts, inside, value, dims)
        return self._local(facts, inside, value, dims, slot)

    def _write(self, facts: OpFactors, inside: bool, view: bool, value: Value, dims: Dims) -> int:
        """The slot that an output goes to; what was written leaves its other form behind."""
        slot = value.slot
        forms = self.forms.get(slot)
        if view:
            return forms[inside] if forms else slot
        written = slot
        if forms and inside in forms and any(v.slot == slot for v in facts.op.inputs):
            written = forms[inside]
        self.forms.pop(slot, None)
        if written != slot or (inside and self.experts.rows.holds(dims)):
            self.forms[slot] = {inside: written}
        self.maker[slot] = (value, facts)
        return written

    def _form(self, facts: OpFactors, inside: bool, value: Value, dims: Dims) -> int:
        """The slot with the form that is asked for; made before, or exchanged now."""
        slot = value.slot
        forms = self.forms.setdefault(slot, {not inside: slot} if inside else {True: slot})
        if inside in forms:
            return forms[inside]
        if slot not in self.maker and (self.of[slot], inside) in self.shared.available:
            self.more.append((slot, inside))
            self.storages.append(self.storages[slot])
            forms[inside] = len(self.storages) - 1
            if inside and self.shared.load > 1:
                self._loaded(forms[inside])
            return forms[inside]
        forms[inside] = self._exchange(facts, inside, forms[not inside], value, dims)
        return forms[inside]

    def _exchange(self, facts: OpFactors, inside: bool, source: int, value: Value, dims: Dims) -> int:
        """Rows to their experts, or back: an all_to_all into a storage of its own."""
        module, made = facts.op.module, self.maker.get(value.slot)
        if made is not None:
            written, maker = made
            self._check_table(maker, inside)
            module = module if inside else maker.op.module
            if written.numel != value.numel:
                value, dims = written, maker.outputs[[v.slot for v in maker.op.outputs].index(value.slot)]
        else:
            value, dims = self._largest(value, dims)
        repeated = any(s == 0 and n != 1 for s, n in zip(value.strides, value.shape, strict=True))
        if not repeated:  # as it lies in memory
            order = sorted(range(len(dims)), key=lambda j: (-int(value.strides[j]), j))  # type: ignore[arg-type]
            shape, strides = tuple(value.shape[j] for j in order), tuple(value.strides[j] for j in order)
            value, dims = replace(value, shape=shape, strides=strides), [dims[j] for j in order]
        given = self._local(facts, not inside, value, dims, source)
        result = self._local(facts, inside, value, dims, value.slot)
        target = len(self.storages)
        result = replace(result, slot=target, strides=_dense(result.shape), offset=0)  # type: ignore[arg-type]
        if repeated:
            self.dense[target] = value
        self.storages.append(Storage(nbytes(result.numel, value.dtype), "activation"))
        self.more.append(None)
        attrs: tuple[tuple[str, Attr], ...] = (
            ("axis", self.shared.axis), ("ranks", self.shared.ranks), ("stride", self.shared.stride),
            ("role", ROLES[inside]),
        )  # fmt: skip
        if self.shared.load > 1:
            attrs = (*attrs, ("load", self.shared.load))
            if inside:
                self._loaded(target)
        self.ops.append(Op("torchperf.all_to_all", facts.op.phase, module, ("self",), (given,), (result,), attrs))
        return target

    def _largest(self, value: Value, dims: Dims) -> tuple[Value, Dims]:
        """All of a storage that an earlier block made, where this block reads it in parts too."""
        for facts in self.records:
            for other, own in zip(facts.op.inputs, facts.inputs, strict=True):
                if other.slot == value.slot and other.numel > value.numel:
                    value, dims = other, own
        return value, dims

    def _check_table(self, maker: OpFactors, inside: bool) -> None:
        """Rows looked up in a parameter as long as there are experts are theirs: to send them would be wrong."""
        if inside and maker.kind == "lookup":
            classes = self.experts.factors.classes
            kind = classes.kind.get(self.of[maker.op.inputs[0].slot])
            if kind == "param" and maker.op.inputs[0].shape[0] in [leaf.size for leaf in self.experts.leaves.values()]:
                raise unsplittable(maker, "what it looks up belongs to experts, by an index that is not theirs")

    def _local(self, facts: OpFactors, inside: bool, value: Value, dims: Dims, slot: int) -> Value:
        """The value on one rank, in `slot`."""
        found = value
        if self.of[value.slot] in self.experts.local and self.experts.has_leaf(dims):
            found = self.shared.values.value(value, dims, WHOLE, None)
            if value.numel > self.shrunk.get(value.slot, (0, 0))[0]:
                self.shrunk[value.slot] = (value.numel, found.numel)
        elif inside and self.experts.rows.batched and self.experts.rows.holds(dims):
            found = self._batched(facts, value, dims)
        whole = self.dense.get(slot)
        if whole is not None:
            if value.shape != whole.shape:
                raise unsplittable(facts, "it reads a part of rows that are one row, repeated")
            found = replace(found, strides=_dense(found.shape), offset=0)  # type: ignore[arg-type]
        return found if slot == found.slot else replace(found, slot=slot)

    def _batched(self, facts: OpFactors, value: Value, dims: Dims) -> Value:
        """[experts, tokens, ..] -> [experts / ranks, ranks * tokens, ..], in the order of memory that it had."""
        ranks, rows = self.shared.ranks, self.experts.rows
        keys = [key(dim) for dim in dims]
        for leaf, tokens in rows.batched.items():
            along = [j for j, k in enumerate(keys) if k in tokens]
            if (leaf,) not in keys or not along:
                continue
            e, t = keys.index((leaf,)), along[0]
            shape, strides = [int(n) for n in value.shape], [int(s) for s in value.strides]  # type: ignore[arg-type]
            shape[e] //= ranks
            shape[t] *= ranks
            if strides[e] > strides[t]:
                strides[e] *= ranks
            else:
                strides[t] //= ranks
            return replace(value, shape=tuple(shape), strides=tuple(strides))
        if any(id(factor) in rows.batched for dim in dims for factor in flatten(dim)):
            return value  # experts and tokens in one dim: as many as before
        raise unsplittable(facts, "it reads tokens that are the same for all of them")
