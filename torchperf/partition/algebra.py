"""Dims as ordered lists of factors, outer to inner, and the one operation on them: two dims are the same.

A factor is a leaf (heads, ffn, vocab, ...), an alias of another, a product of factors, or a SUM of segments, each a
list of factors: a fused QKV weight has (heads*head_dim + heads*head_dim + heads*head_dim) rows. A dim of size 1 is the
empty list. `unify` refines both sides until they agree; where sizes do not nest (6 * 4 against 4 * 6) it raises Clash.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

MAX_DEPTH = 12


class Clash(Exception):
    """Two dims that are said to be the same do not nest."""


class Factor:
    """A part of a dim. kind: leaf | alias (parts: the other) | product (parts: factors) | sum (parts: dims)."""

    __slots__ = ("kind", "name", "parts", "size", "target")

    def __init__(self, size: int, name: str = "") -> None:
        self.size = size
        self.kind = "leaf"
        self.name = name
        self.target: Factor | None = None
        self.parts: list[list[Factor]] = []

    def __repr__(self) -> str:
        return show([self])


Dim = list[Factor]
Dims = list[Dim]


def fresh(size: int, name: str = "") -> Dim:
    """A dim of its own: one leaf, or nothing where the size is 1."""
    return [] if size == 1 else [Factor(size, name)]


def root(factor: Factor) -> Factor:
    """What an alias stands for."""
    while factor.kind == "alias":
        assert factor.target is not None
        if factor.target.kind == "alias":
            factor.target = factor.target.target
        factor = factor.target  # type: ignore[assignment]
    return factor


def flatten(dim: Iterable[Factor]) -> Dim:
    """The dim as leaves and sums: aliases followed, products opened, size 1 dropped."""
    out: Dim = []
    for factor in dim:
        found = root(factor)
        if found.kind == "product":
            out += flatten(found.parts[0])
        elif found.size != 1:
            out.append(found)
    return out


def leaves(dim: Iterable[Factor]) -> Iterator[Factor]:
    """Every leaf of the dim, those inside sums too."""
    for factor in flatten(dim):
        if factor.kind == "sum":
            for segment in factor.parts:
                yield from leaves(segment)
        else:
            yield factor


def size_of(dim: Iterable[Factor]) -> int:
    """Number of positions along the dim."""
    return math.prod(factor.size for factor in dim)


def sum_of(segments: list[Dim]) -> Factor:
    """Segments side by side; one that has a single position keeps a leaf of size 1 in its place."""
    factor = Factor(sum(size_of(segment) for segment in segments))
    factor.kind = "sum"
    factor.parts = [segment or [Factor(1)] for segment in segments]
    return factor


def unify(a: Dim, b: Dim, depth: int = 0) -> None:
    """Make two dims the same, outer to inner; raises Clash. What agreed before the clash stays unified: it is true."""
    if depth > MAX_DEPTH:
        raise Clash("too deep")
    if len(a) == 1 and len(b) == 1 and root(a[0]) is root(b[0]):
        return
    left, right = flatten(a), flatten(b)
    while left or right:
        left, right = flatten(left), flatten(right)
        if not left and not right:
            return
        if not left or not right:
            raise Clash("sizes differ")
        x, y = left.pop(0), right.pop(0)
        if x is y:
            continue
        if x.size == y.size:
            _same_size(x, y, depth)
            continue
        if x.size < y.size:
            x, y, left, right = y, x, right, left
        if x.kind == "leaf":
            if x.size % y.size:
                raise Clash(f"{y.size} does not divide {x.size}")
            rest = Factor(x.size // y.size)
            _into_product(x, [y, rest])
            left.insert(0, rest)
        else:
            _open_sum(x, y, right, depth)


def _same_size(x: Factor, y: Factor, depth: int) -> None:
    if x.kind == "leaf":
        _into_alias(x, y)
    elif y.kind == "leaf":
        _into_alias(y, x)
    else:
        _unify_sums(x, y, depth)


def _into_alias(x: Factor, y: Factor) -> None:
    x.kind, x.target = "alias", y
    y.name = y.name or x.name


def _into_product(x: Factor, parts: Dim) -> None:
    x.kind, x.parts = "product", [parts]


def _open_sum(x: Factor, y: Factor, right: Dim, depth: int) -> None:
    """A sum against y * (what follows y): pull the common inner factors out of every segment."""
    inner: Dim = []
    reached = y.size
    while reached < x.size:
        if not right:
            raise Clash("a sum is longer than the other side")
        inner.append(right.pop(0))
        reached *= inner[-1].size
    if reached != x.size:
        raise Clash("a sum does not end where the other side's factor does")
    _pull(x, inner, depth)
    unify([root(x).parts[0][0]], [y], depth + 1)


def _pull(x: Factor, inner: Dim, depth: int) -> None:
    common = size_of(inner)
    heads: list[Dim] = []
    for segment in x.parts:
        if size_of(segment) % common:
            raise Clash("a segment does not hold the common factor")
        head = fresh(size_of(segment) // common)
        unify(segment, [*head, *inner], depth + 1)
        heads.append(head)
    if x.kind == "sum":
        _into_product(x, [sum_of(heads), *inner])


def _ends(x: Factor) -> list[int]:
    ends, at = [], 0
    for segment in x.parts:
        at += size_of(segment)
        ends.append(at)
    return ends


def _unify_sums(x: Factor, y: Factor, depth: int) -> None:
    ends = sorted({*_ends(x), *_ends(y)})
    for side in (x, y):
        if _ends(side) != ends:
            _refine(side, ends)
    for left, right in zip(list(x.parts), list(y.parts), strict=True):
        unify(left, right, depth + 1)
    x, y = root(x), root(y)
    if x is not y and x.kind == "sum":
        _into_alias(x, y)


def _refine(x: Factor, ends: list[int]) -> None:
    """Cut the segments of a sum also at `ends`."""
    parts: list[Dim] = []
    at = 0
    for segment in x.parts:
        size = size_of(segment)
        inside = [end - at for end in ends if at < end < at + size]
        parts += cut(segment, inside) if inside else [segment]
        at += size
    x.parts = parts


def cut(dim: Dim, at: list[int]) -> list[Dim]:
    """The pieces of a dim cut at these positions; its outermost factor becomes a sum. Raises Clash."""
    flat = flatten(dim)
    if not flat:
        raise Clash("nothing to cut")
    outer, inner = flat[0], size_of(flat[1:])
    if any(position % inner for position in at):
        raise Clash("a cut inside an inner factor")
    ends = [position // inner for position in at] + [outer.size]
    if outer.kind == "leaf":
        name, starts = outer.name, [0, *ends[:-1]]
        outer.kind = "sum"
        outer.parts = [[Factor(end - start, name)] for start, end in zip(starts, ends, strict=True)]
    else:
        _refine(outer, sorted({*_ends(outer), *ends}))
    pieces: list[Dim] = []
    held: list[Dim] = []
    position, wanted = 0, 0
    for segment in outer.parts:
        held.append(segment)
        position += size_of(segment)
        if position == ends[wanted]:
            head = held[0] if len(held) == 1 else [sum_of(held)]
            pieces.append([*head, *flat[1:]])
            held, wanted = [], wanted + 1
    return pieces


def show(dim: Iterable[Factor], inside: bool = False) -> str:
    """`8 kv_heads * 4 group * 128 head_dim`, a sum in brackets; `1` where there is no factor."""
    flat = flatten(dim)
    if not flat:
        return "1"
    texts = []
    for factor in flat:
        if factor.kind == "sum":
            texts.append("(" + " + ".join(show(segment, True) for segment in factor.parts) + ")")
        elif len(flat) == 1 and not inside and factor.name:
            texts.append(f"{factor.name}={factor.size}")
        else:
            texts.append(f"{factor.size} {factor.name}".strip())
    return "*".join(texts)
