"""The factors of every dim of a program, found by walking its ops once.

Parameters and inputs start with a leaf a dim; each op's rule says which dims of its operands are the same. Splits of
heads, fused weights, packed gates and merged batches come out as products and sums. Nothing is told by its size alone:
sequence = hidden makes no difference.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ..graph.errors import TorchperfError
from ..graph.graph import Graph
from ..graph.tensor import Value
from .algebra import Clash, Dim, Dims, Factor, flatten, fresh, leaves, show, size_of, unify
from .rule_files import base_name, find
from .step import OpFactors, Step
from .storages import Classes, Key, classes, contiguous, memory_order


@dataclass(frozen=True, slots=True)
class Note:
    """Something about one op: a clash of sizes, or that no rule knows it."""

    block: int
    op: int
    name: str
    module: str
    text: str


@dataclass(slots=True)
class Factors:
    """The factors of a bound graph.

    blocks       of each block, an OpFactors per op
    values       dims of every value, by (class of its storage, offset, shape, strides)
    parameters   dims of each parameter, by its starred name; where layers of one name have other shapes, see `label`
    copies       how many parameters each of these stands for
    clashes      dims that a rule held to be the same and whose sizes do not nest
    unresolved   ops that no rule knows
    """

    graph: Graph
    classes: Classes
    blocks: list[list[OpFactors]] = field(default_factory=list)
    values: dict[Key, Dims] = field(default_factory=dict)
    parameters: dict[str, Dims] = field(default_factory=dict)
    copies: dict[str, int] = field(default_factory=dict)
    clashes: list[Note] = field(default_factory=list)
    unresolved: list[Note] = field(default_factory=list)

    def of(self, block: int, value: Value) -> Dims:
        """The dims of a value of that block."""
        return self.values[self.classes.key(block, value)]

    def label(self, name: str, shape: Sequence[int]) -> str:
        """The key in `parameters` of a parameter of that name and shape: the name, where no other came first."""
        known = self.parameters.get(name)
        alike = known is None or [size_of(dim) for dim in known] == list(shape)
        return name if alike else f"{name} {tuple(shape)}"

    def parameter_leaves(self) -> dict[str, list[Factor]]:
        """The leaves in each parameter, outer dims first."""
        return {name: [leaf for dim in dims for leaf in leaves(dim)] for name, dims in self.parameters.items()}

    def leaf(self, name: str) -> list[Factor]:
        """The leaves that bear that name (seq, hidden, heads, ...), each once."""
        found: dict[int, Factor] = {}
        for dims in self.values.values():
            for dim in dims:
                for factor in leaves(dim):
                    if factor.name == name:
                        found[id(factor)] = factor
        return list(found.values())

    def __str__(self) -> str:
        return "\n".join(
            f"{name}: " + " x ".join(f"[{show(d)}]" for d in dims) for name, dims in self.parameters.items()
        )


def propagate(graph: Graph) -> Factors:
    """The factors of a bound graph; raises TorchperfError where it is not bound."""
    if graph.bound is None and graph.facts.ranges:
        raise TorchperfError(
            "the graph has free sizes", hint="bind it before it is split: `capture.bind(batch=, seq=)`"
        )
    return _Propagation(graph).run()


class _Propagation:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.classes = classes(graph)
        self.out = Factors(graph, self.classes)
        self.flat: dict[int, tuple[int, Dim]] = {}  # class -> elements, factors in the order of memory
        self.hints: list[tuple[Dim, str]] = []
        self.views: dict[int, list[Key]] = {}
        self.tied: dict[Key, Dim] = {}  # what a tensor that is no operand in the usual sense stands for

    def run(self) -> Factors:
        self._seed()
        for b, block in enumerate(self.graph.blocks):
            records: list[OpFactors] = []
            self.out.blocks.append(records)
            for i, op in enumerate(block.ops):
                records.append(self._op(b, i))
                for value, dims in zip(op.outputs, records[-1].outputs, strict=True):
                    self._write(b, i, value, dims, view=value.slot in [v.slot for v in op.inputs])
        self._gradients()
        self._name()
        return self.out

    def _seed(self) -> None:
        for cls, parameter in self.classes.parameter.items():
            name = self.classes.name.get(cls, parameter.names[0])
            dims = [fresh(n) for n in parameter.shape]
            self._enter((cls, 0, parameter.shape, contiguous(parameter.shape)), dims)
            if self.classes.kind.get(cls) == "param":
                self._parameter(self.out.label(name, parameter.shape), cls, dims)

    def _parameter(self, name: str, cls: int, dims: Dims) -> None:
        """Layers of one name are split alike, also where they run different blocks (a window, a dense layer)."""
        known = self.out.parameters.setdefault(name, dims)
        self.out.copies[name] = self.out.copies.get(name, 0) + self.classes.copies[cls]
        for x, y in zip(known, dims, strict=True):
            if x is not y:
                unify(x, y)

    def _enter(self, key: Key, dims: Dims) -> None:
        self.out.values[key] = dims
        self.views.setdefault(key[0], []).append(key)
        if key[1] == 0:
            order = memory_order(key[2], key[3])
            if order is not None:
                numel = 1
                for n in key[2]:
                    numel *= n
                if numel > self.flat.get(key[0], (0, []))[0]:
                    self.flat[key[0]] = (numel, [f for j in order for f in dims[j]])

    def _read(self, b: int, i: int, value: Value) -> Dims:
        """The dims of a value; where this view was not met before, they follow from what is known of the storage."""
        key = self.classes.key(b, value)
        known = self.out.values.get(key)
        if known is not None:
            return known
        dims = [fresh(n) for n in key[2]]
        cls = key[0]
        order = memory_order(key[2], key[3])
        if cls in self.flat and order is not None and self.flat[cls][0] == value.numel and key[1] == 0:
            self._same(b, i, [f for j in order for f in dims[j]], self.flat[cls][1])
        elif cls in self.flat:
            self._from_views(key, dims)
        self._enter(key, dims)
        if self.classes.kind.get(cls) == "input":
            self._name_input(cls, dims)
        return dims

    def _from_views(self, key: Key, dims: Dims) -> None:
        """Dims of equal stride and size are the same, where an earlier view of the storage starts at the same place."""
        for other in self.views.get(key[0], ()):
            if other[1] != key[1]:
                continue
            by_stride = {(s, n): d for s, n, d in zip(other[3], other[2], self.out.values[other], strict=True) if s}
            for j, (s, n) in enumerate(zip(key[3], key[2], strict=True)):
                if s and (s, n) in by_stride:
                    dims[j] = by_stride[s, n]
            return

    def _write(self, b: int, i: int, value: Value, dims: Dims, view: bool) -> None:
        key = self.classes.key(b, value)
        known = self.out.values.get(key)
        if known is not None:
            if 0 not in [s for s, n in zip(key[3], key[2], strict=True) if n != 1]:
                for x, y in zip(known, dims, strict=True):
                    self._same(b, i, x, y)
            else:
                self.out.values[key] = dims
            return
        if not view and key[0] in self.flat:
            order = memory_order(key[2], key[3])
            if order is not None and self.flat[key[0]][0] == value.numel and key[1] == 0:
                self._same(b, i, [f for j in order for f in dims[j]], self.flat[key[0]][1])
        self._enter(key, dims)

    def _same(self, b: int, i: int, x: Dim, y: Dim) -> None:
        if x is y:
            return
        try:
            unify(x, y)
        except Clash as clash:
            self._note(self.out.clashes, b, i, str(clash))

    def _note(self, notes: list[Note], b: int, i: int, text: str) -> None:
        op = self.graph.blocks[b].ops[i]
        notes.append(Note(b, i, op.name, op.module, text))

    def _op(self, b: int, i: int) -> OpFactors:
        op = self.graph.blocks[b].ops[i]
        facts = OpFactors(op, [self._read(b, i, value) for value in op.inputs])
        kinds = [self.classes.kind.get(self.classes.of[b][value.slot], "activation") for value in op.inputs]
        step = Step(
            facts,
            kinds,
            note=lambda text: self._note(self.out.clashes, b, i, text),
            hint=lambda dim, name: self.hints.append((dim, name)),
            tie=lambda k, dim: self._same(b, i, self.tied.setdefault(self.classes.key(b, op.inputs[k]), dim), dim),
        )
        rule = find(op.name)
        if rule is None:
            facts.known = False
            facts.outputs = [step.fresh(v.shape) for v in op.outputs]  # type: ignore[arg-type]
        elif op.outputs:
            rule(step)
        if not facts.known:
            self._note(self.out.unresolved, b, i, f"no factor rule for `{base_name(op.name)}`")
        return facts

    def _gradients(self) -> None:
        """A gradient has the factors of its parameter."""
        for b, block in enumerate(self.graph.blocks):
            last: dict[int, tuple[int, Value]] = {}
            for i, op in enumerate(block.ops):
                for value in op.outputs:
                    if block.storages[value.slot].kind == "grad":
                        last[value.slot] = (i, value)
            for slot, (i, value) in last.items():
                found = self.out.values[self.classes.key(b, value)]
                shape = tuple(size_of(dim) for dim in found)
                dims = self.out.parameters.get(self.out.label(block.storages[slot].name or "", shape))
                if dims is not None and len(dims) == len(found):
                    for x, y in zip(found, dims, strict=True):
                        self._same(b, i, x, y)

    def _name_input(self, cls: int, dims: Dims) -> None:
        name = self.classes.name.get(cls)
        for given in self.graph.facts.inputs:
            if given.name != name or len(given.shape) != len(dims):
                continue
            if len(dims) == 2 and given.dtype in (
                "i64",
                "i32",
            ):  # ids: one row a sequence, whether or not sizes are free
                self.hints += [(dims[0], "batch"), (dims[1], "seq")]
            else:
                for size, dim in zip(given.shape, dims, strict=True):
                    if not isinstance(size, int) and str(size).isidentifier():
                        self.hints.append((dim, str(size)))

    def _name(self) -> None:
        """Names for people to read: what rules and inputs say, and `hidden` for the leaf that most parameters share."""
        uses: Counter[int] = Counter()
        every: dict[int, Factor] = {}
        for dims in self.out.parameters.values():
            for leaf in {id(f): f for d in dims for f in leaves(d)}.values():
                uses[id(leaf)] += 1
                every[id(leaf)] = leaf
        multiplied = self._multiplied()
        for dim, name in sorted(self.hints, key=lambda hint: hint[1] == "positions"):  # a vocabulary's name goes first
            flat = flatten(dim)
            if len(flat) == 1 and not flat[0].name:
                tied = name == "positions" and id(flat[0]) in multiplied  # a head: the model made ids of its labels
                flat[0].name = "vocab" if tied else name
        if uses:
            hub, count = uses.most_common(1)[0]
            if count > 2:
                every[hub].name = every[hub].name or "hidden"

    def _multiplied(self) -> set[int]:
        """Ids of the leaves in parameters that a product reads."""
        return {
            id(leaf)
            for block, records in zip(self.graph.blocks, self.out.blocks, strict=True)
            for facts in records
            if facts.kind == "matmul"
            for value, dims in zip(facts.op.inputs, facts.inputs, strict=True)
            if block.storages[value.slot].kind == "param"
            for dim in dims
            for leaf in leaves(dim)
        }


def iterate(factors: Factors) -> Iterator[tuple[int, int, OpFactors]]:
    """(block, op, facts) of every stored op."""
    for b, records in enumerate(factors.blocks):
        for i, facts in enumerate(records):
            yield b, i, facts
