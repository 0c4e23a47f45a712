"""Numbers that a model showed at several sizes -> expressions of these sizes.

Captures of one model at several (batch, seq) differ only in the numbers on their tapes. Numbers are grouped by the
vector of values they took (20 to 120 distinct vectors a model), and each vector gets the simplest expression of the
grammar in graph/expr.py that meets every value: a constant, one product, a sum of two, a sum of three.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction

from ..graph.expr import Dim, Expr, Factor, Ratio, Scaled, Term, evaluate_factor

Point = Mapping[str, int]
Number = int | float
_Product = tuple[tuple[Factor, ...], tuple[int, ...]]  # factors, value at each point


class Fitter:
    """Finds expressions for vectors of values taken at `points`; `constants` are windows and chunks to try."""

    def __init__(self, points: Sequence[Point], constants: Sequence[int] = ()) -> None:
        self.points = points
        self._cache: dict[tuple[bool, tuple[Number, ...]], Dim | float | Ratio | Scaled | None] = {}
        plain, derived = _products(list(points[0]), constants)
        self._plain = [(f, self._values(f)) for f in plain]
        self._derived = [(f, self._values(f)) for f in derived]
        self._one: _Product = ((), (1,) * len(points))

    def _values(self, factors: tuple[Factor, ...]) -> tuple[int, ...]:
        values = []
        for point in self.points:
            product = 1
            for factor in factors:
                product *= evaluate_factor(factor, point)
            values.append(product)
        return tuple(values)

    def fit(self, values: tuple[Number, ...]) -> Dim | float | Ratio | Scaled | None:
        """The simplest expression that takes `values` at the points, or None."""
        is_float = isinstance(values[0], float)
        key = (is_float, values)
        if key not in self._cache:
            self._cache[key] = self._fit_float(values) if is_float else self._fit_int(values)  # type: ignore[arg-type]
        return self._cache[key]

    def _fit_float(self, values: tuple[float, ...]) -> float | Ratio | Scaled | None:
        if all(v == values[0] or (v != v and values[0] != values[0]) for v in values):
            return values[0]
        for factors, x in [*self._plain, *self._derived]:  # numerator / product
            numerator = values[0] * x[0]
            if all(abs(v * xi - numerator) <= 1e-9 * abs(numerator) for v, xi in zip(values, x, strict=True)):
                return Ratio(numerator, Expr((Term(1, 1, factors),)))
        if all(float(v).is_integer() for v in values):  # an integer that was given as a float
            whole = self._fit_int(tuple(int(v) for v in values))
            if isinstance(whole, Expr):
                return Scaled(1.0, whole)
        for low in (-1, 1):  # numerator / (size +- 1)
            for factors, x in self._plain:
                numerator = values[0] * (x[0] + low)
                errors = [abs(v * (xi + low) - numerator) for v, xi in zip(values, x, strict=True)]
                if max(errors) <= 1e-9 * abs(numerator):
                    return Ratio(numerator, Expr((Term(1, 1, factors), Term(low, 1, ()))))
        return None

    def _fit_int(self, values: tuple[int, ...]) -> Dim | None:
        if len(set(values)) == 1:
            return values[0]
        for products, whole in ((self._plain, False), (self._derived, True)):
            for factors, x in products:
                if x[0] == 0:
                    continue
                c = Fraction(values[0], x[0])
                if (c.denominator == 1 or not whole) and all(c * xi == v for xi, v in zip(x, values, strict=True)):
                    return Expr((Term(c.numerator, c.denominator, factors),))
        best = min(self._pairs(values), key=lambda found: found[0], default=None)
        if best is not None:
            return best[1]
        return min(self._triples(values), key=lambda found: found[0], default=(0, None))[1]

    def _pairs(self, values: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], Expr]]:
        pools = [(0, self._plain, [self._one]), (1, self._plain, self._plain), (2, self._derived, [self._one]),
                 (3, self._derived, self._plain)]  # fmt: skip
        for rank, left, right in pools:
            for (f1, x1), (f2, x2) in itertools.product(left, right):
                solved = _solve2(values, x1, x2)
                if solved is not None:
                    c1, c2 = solved
                    cost = abs(c1) + (abs(c2) if f2 else 0)
                    yield (rank, cost, len(f1) + len(f2)), Expr((Term(c1, 1, f1), Term(c2, 1, f2)))

    def _triples(self, values: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], Expr]]:
        if len(self.points) < 4:
            return
        pool = [*self._plain, self._one]
        for three in (*itertools.combinations(pool, 3), *self._squares()):
            solved = _solve3(values, [x for _, x in three])
            if solved is not None and all(solved):
                terms = tuple(Term(c, 1, f) for c, (f, _) in zip(solved, three, strict=True))
                yield (sum(map(abs, solved)), sum(len(f) for f, _ in three)), Expr(terms)

    def _squares(self) -> Iterator[tuple[_Product, _Product, _Product]]:
        """a^2, a, 1 of each chunk count a, alone and times each plain product: (a + 1)^2 pads by one chunk."""
        for factors, _ in self._derived:
            if len(factors) == 1:
                for rest in ((), *(f for f, _ in self._plain)):
                    three = [(*rest, *factors, *factors), (*rest, *factors), rest]
                    yield tuple((f, self._values(f)) for f in three)  # type: ignore[misc]


def _products(names: list[str], constants: Sequence[int]) -> tuple[list[tuple[Factor, ...]], list[tuple[Factor, ...]]]:
    sequences = [n for n in names if n != "batch"]
    batch: Factor = ("", "batch", 0)
    has_batch = "batch" in names
    singles: list[tuple[Factor, ...]] = [(("", n, 0),) for n in names]
    squares: list[tuple[Factor, ...]] = [
        (("", a, 0), ("", b, 0)) for a, b in itertools.combinations_with_replacement(sequences, 2)
    ]
    plain = [*singles]
    if has_batch:
        plain += [(batch, ("", n, 0)) for n in sequences]
    plain += squares
    if has_batch:
        plain += [(batch, *square) for square in squares]
    derived: list[tuple[Factor, ...]] = []
    for name, constant in itertools.product(sequences, constants):
        for function in ("ceil", "min", "excess", "pad"):
            factor: Factor = (function, name, constant)
            for rest in ((), (("", name, 0),), (factor,)):
                derived.append((factor, *rest))
                if has_batch:
                    derived.append((batch, factor, *rest))
    return plain, derived


def _solve2(y: Sequence[int], a: Sequence[int], b: Sequence[int]) -> tuple[int, int] | None:
    """Integers c1, c2, neither zero, with c1 a + c2 b = y at every point."""
    for i, j in itertools.combinations(range(len(y)), 2):
        det = a[i] * b[j] - a[j] * b[i]
        if det:
            n1, n2 = y[i] * b[j] - y[j] * b[i], a[i] * y[j] - a[j] * y[i]
            if n1 % det or n2 % det or not n1 or not n2:
                return None
            c1, c2 = n1 // det, n2 // det
            return (c1, c2) if all(c1 * p + c2 * q == v for p, q, v in zip(a, b, y, strict=True)) else None
    return None


def _solve3(y: Sequence[int], columns: Sequence[Sequence[int]]) -> tuple[int, ...] | None:
    """Integer coefficients of three columns that give y at every point (Cramer's rule on the first three)."""
    rows = [[column[i] for column in columns] for i in range(3)]
    det = _det(rows)
    if det == 0:
        return None
    solved = []
    for k in range(3):
        n = _det([[y[i] if j == k else rows[i][j] for j in range(3)] for i in range(3)])
        if n % det:
            return None
        solved.append(n // det)
    fits = all(sum(c * col[i] for c, col in zip(solved, columns, strict=True)) == y[i] for i in range(len(y)))
    return tuple(solved) if fits else None


def _det(m: Sequence[Sequence[int]]) -> int:
    return (
        m[0][0] * (m[1][1] * m[2][2] - m[1][2] * m[2][1])
        - m[0][1] * (m[1][0] * m[2][2] - m[1][2] * m[2][0])
        + m[0][2] * (m[1][0] * m[2][1] - m[1][1] * m[2][0])
    )
