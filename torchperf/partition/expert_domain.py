"""Where a program's experts are: the products that share an `experts` leaf, and the ops between them.

Experts are told by what the program does. Rows sorted by expert meet `_grouped_mm`; or every expert multiplies every
token (`bmm`), and a `topk` picks along the batch of that product. Between products rows keep their place, so the ops
on the way belong to the expert's owner: with them come lookups of a table by the expert of a row (biases).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from ..graph.errors import TorchperfError
from .algebra import Dim, Dims, Factor, flatten, leaves
from .factors import Factors, iterate
from .rules import base_name
from .step import OpFactors
from .storages import contiguous

GROUPED = "_grouped_mm"
BATCHED = ("bmm", "baddbmm")
COUNTS = ("cumsum", "histc", "bincount", "_to_copy", "view", "detach", "clone", "alias")  # from experts of rows to ends
Key = tuple[int, ...]


class NoExperts(TorchperfError):
    """A program without experts."""


def key(dim: Dim) -> Key:
    """The identity of a dim: its factors, outer to inner."""
    return tuple(id(factor) for factor in flatten(dim))


@dataclass(slots=True)
class Rows:
    """Which values hold rows on their way through experts.

    ragged    dims of rows sorted by expert
    batched   id of an experts leaf -> dims of the tokens that each of these experts meets
    """

    ragged: set[Key] = field(default_factory=set)
    batched: dict[int, set[Key]] = field(default_factory=dict)
    memo: dict[int, bool] = field(default_factory=dict)

    def holds(self, dims: Dims) -> bool:
        """Whether one dim (or experts and tokens together) counts these rows."""
        known = self.memo.get(id(dims))
        if known is None:
            keys = [key(dim) for dim in dims]
            known = self.memo[id(dims)] = any(k in self.ragged for k in keys) or any(
                (leaf, *rows) in keys or ((leaf,) in keys and rows in keys)
                for leaf, every in self.batched.items()
                for rows in every
            )
        return known

    def lost(self, facts: OpFactors) -> bool:
        """Whether the op moves rows to other places, or sums over them."""
        spent = [key(dim) for dims in (facts.opaque, *facts.contracted) for dim in dims]
        return facts.kind == "lookup" or any(
            k in self.ragged or any(k == (leaf,) or k in rows for leaf, rows in self.batched.items()) for k in spent
        )


@dataclass(slots=True)
class Experts:
    """The experts of a factored program.

    leaves      id -> leaf of the experts, and of tables that are looked up by expert
    rows        what counts their rows
    named       classes of the storages that say which expert a row meets, and where an expert's rows end
    parameters  starred names of the weights and biases of experts
    local       classes of storages with a slice for each expert and no rows: weights, biases, their gradients
    forced      of each block, the products and the lookups by expert
    inside      of each block, the ops that an expert's owner runs
    idle        of each block, views that nobody in the block reads
    home        classes of storages with rows that these ops write
    """

    factors: Factors
    leaves: dict[int, Factor] = field(default_factory=dict)
    rows: Rows = field(default_factory=Rows)
    named: set[int] = field(default_factory=set)
    parameters: set[str] = field(default_factory=set)
    local: set[int] = field(default_factory=set)
    forced: list[set[int]] = field(default_factory=list)
    inside: list[set[int]] = field(default_factory=list)
    idle: list[set[int]] = field(default_factory=list)
    home: set[int] = field(default_factory=set)
    memo: dict[int, bool] = field(default_factory=dict)

    def has_leaf(self, dims: Dims) -> bool:
        """Whether a value has a slice for each expert."""
        known = self.memo.get(id(dims))
        if known is None:
            known = self.memo[id(dims)] = any(id(leaf) in self.leaves for dim in dims for leaf in leaves(dim))
        return known


def products(factors: Factors) -> Experts:
    """The experts' products and tables; raises TorchperfError where there are none, or none that can be split."""
    out = Experts(factors, forced=[set() for _ in factors.blocks])
    _grouped(out)
    _batched(out)
    if not out.leaves:
        raise NoExperts(
            "the model has no experts to split",
            facts=[("found", f"no `aten.{GROUPED}`, and no product with an expert for each choice of a `topk`")],
            hint="leave out `--ep`",
        )
    _tables(out)
    return out


def unsplittable(facts: OpFactors, why: str) -> TorchperfError:
    """The error for experts that this rewrite does not know how to hand out."""
    return TorchperfError(
        f"experts cannot be split: {why}", facts=[("op", f"`{facts.op.name}` in `{facts.op.module}`")]
    )


def _enter(out: Experts, facts: OpFactors, experts: Dim, rows: Dim) -> Factor:
    found = flatten(experts)
    if len(found) != 1 or found[0].kind != "leaf":
        raise unsplittable(facts, f"their number is no single dim but {experts}")
    if not flatten(rows):
        raise unsplittable(facts, "a single row cannot be told from a dim of size 1")
    found[0].name = found[0].name or "experts"
    out.leaves[id(found[0])] = found[0]
    return found[0]


def _grouped(out: Experts) -> None:
    for b, i, facts in iterate(out.factors):
        name = base_name(facts.op.name)
        if "grouped_mm" not in name:
            continue
        if name != GROUPED or facts.ragged is None:
            raise unsplittable(facts, "this product of groups has no rows sorted by expert")
        rows = facts.inputs[0][0] if len(facts.inputs[1]) == 3 else facts.inputs[1][0]
        _enter(out, facts, facts.ragged, rows)
        out.rows.ragged.add(key(rows))
        out.forced[b].add(i)
        _name(out, b, i)


def _name(out: Experts, b: int, i: int) -> None:
    """The storages from which a product's ends of rows are counted, back to the expert of each row."""
    ops, of = out.factors.graph.blocks[b].ops, out.factors.classes.of[b]
    wanted = {ops[i].operand("offs").slot}
    for j in range(i - 1, -1, -1):
        if base_name(ops[j].name) in COUNTS and any(v.slot in wanted for v in ops[j].outputs):
            wanted.update(v.slot for v in ops[j].inputs)
    out.named.update(of[slot] for slot in wanted)


def _batched(out: Experts) -> None:
    """Products with a batch along which a `topk` picks, weights on one side or neither (their gradient)."""
    picked: set[int] = set()
    products: list[tuple[int, int, OpFactors]] = []
    for b, i, facts in iterate(out.factors):
        name = base_name(facts.op.name)
        if name == "topk":
            picked.update(id(factor) for dim in facts.opaque for factor in flatten(dim))
        elif name in BATCHED:
            products.append((b, i, facts))
    shapes = [{key(dim) for dim in dims} for dims in _weights(out.factors)] if picked and products else []
    for b, i, facts in products:
        batch = flatten(facts.outputs[0][0])
        if len(batch) != 1 or id(batch[0]) not in picked:
            continue
        left, right = facts.inputs[-2], facts.inputs[-1]
        weights = [{key(dim) for dim in dims} in shapes for dims in (left, right)]
        rows = left[1] if weights[1] else right[2] if weights[0] else left[2]
        leaf = _enter(out, facts, batch, rows)
        out.rows.batched.setdefault(id(leaf), set()).add(key(rows))
        out.forced[b].add(i)


def _weights(factors: Factors) -> Iterator[Dims]:
    """The dims of every parameter; more than `factors.parameters` where layers of one name run different blocks."""
    for cls, parameter in factors.classes.parameter.items():
        if factors.classes.kind.get(cls) == "param":
            yield factors.values[cls, 0, parameter.shape, contiguous(parameter.shape)]


def _tables(out: Experts) -> None:
    """Parameters looked up by the expert of a row have a row for each expert; so have the sums of their gradients."""
    of = out.factors.classes.of
    held = {id(leaf) for dims in _weights(out.factors) for dim in dims for leaf in leaves(dim)}
    reads = [
        (b, i, facts)
        for b, i, facts in iterate(out.factors)
        if base_name(facts.op.name) not in COUNTS and any(of[b][v.slot] in out.named for v in facts.op.inputs[1:])
    ]
    for b, i, facts in reads:
        if facts.kind != "lookup" or not facts.contracted[0]:
            continue
        found = [factor for dim in facts.contracted[0] for factor in flatten(dim)]
        if any(id(factor) in held for factor in found):
            if len(found) != 1 or found[0].kind != "leaf":
                raise unsplittable(facts, "a table of theirs is looked up along more than one dim")
            found[0].name = found[0].name or "experts"
            out.leaves[id(found[0])] = found[0]
            out.forced[b].add(i)
    out.memo.clear()
    for b, i, facts in reads:
        if any(out.has_leaf(dims) for dims in facts.outputs):
            out.forced[b].add(i)
