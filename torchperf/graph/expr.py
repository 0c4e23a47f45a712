"""A size as an expression of the graph's free sizes: `8*batch*seq + 255*seq`, `ceil(seq, 32)*batch`.

Grammar, which sufficed for every model family tried (constants are plain ints and never an `Expr`):

    expr   = term (" + " term)*            term = [coefficient ["/" divisor] "*"] factor ("*" factor)*
    factor = name | ceil(name, q) | pad(name, q) | min(name, w) | excess(name, w)

with ceil(s, q) = ceil(s / q), pad(s, q) = -s mod q, excess(s, w) = max(s - w, 0). A term without a factor is a
constant. There is no eval: `parse` reads this grammar and nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from .errors import TorchperfError

LARGEST = 2**63 - 1  # of a dim, a stride, a number of elements: torch counts them in 64 bits
Factor = tuple[str, str, int]  # (function or "", name of the size, its constant)


def evaluate_factor(factor: Factor, sizes: Mapping[str, int]) -> int:
    """One factor at concrete sizes."""
    function, name, constant = factor
    size = sizes[name]
    if function == "":
        return size
    if function == "ceil":
        return -(-size // constant)
    if function == "pad":
        return -size % constant
    if function == "min":
        return min(size, constant)
    return max(size - constant, 0)  # excess


@dataclass(frozen=True, slots=True)
class Term:
    """coefficient / divisor * product of factors."""

    coefficient: int
    divisor: int
    factors: tuple[Factor, ...]

    def __str__(self) -> str:
        head = f"{self.coefficient}" + (f"/{self.divisor}" if self.divisor != 1 else "")
        names = [name if not f else f"{f}({name}, {c})" for f, name, c in self.factors]
        if names and head == "1":
            return "*".join(names)
        return "*".join([head, *names])


@dataclass(frozen=True, slots=True)
class Expr:
    """A sum of terms: one dim, stride, offset or integer argument as a function of the graph's sizes."""

    terms: tuple[Term, ...]

    def __call__(self, sizes: Mapping[str, int]) -> int:
        """The integer at `sizes`; a fraction means that the sizes lie outside what was captured.

        Raises TorchperfError for a fraction, and for what 64 bits do not hold.
        """
        total = 0
        for term in self.terms:
            product = term.coefficient
            for factor in term.factors:
                product *= evaluate_factor(factor, sizes)
            if product % term.divisor:
                raise TorchperfError(f"`{self}` is not whole at {dict(sizes)}", hint="capture the model at these sizes")
            total += product // term.divisor
        if not -LARGEST <= total <= LARGEST:
            raise too_large(f"`{self}`", sizes)
        return total

    def __str__(self) -> str:
        return " + ".join(str(term) for term in self.terms)


@dataclass(frozen=True, slots=True)
class Ratio:
    """A floating-point argument that falls with the sizes: numerator / denominator, as in a mean's 1/n."""

    numerator: float
    denominator: Expr

    def __call__(self, sizes: Mapping[str, int]) -> float:
        below = self.denominator(sizes)
        if below == 0:
            raise TorchperfError(f"`{self}` divides by zero at {dict(sizes)}", hint="capture the model at these sizes")
        return self.numerator / below

    def __str__(self) -> str:
        return f"{self.numerator!r} / ({self.denominator})"


@dataclass(frozen=True, slots=True)
class Scaled:
    """A floating-point argument that grows with the sizes: factor * expr."""

    factor: float
    expr: Expr

    def __call__(self, sizes: Mapping[str, int]) -> float:
        return self.factor * self.expr(sizes)

    def __str__(self) -> str:
        return f"{self.factor!r} * ({self.expr})"


Dim = int | Expr
_FACTOR = re.compile(r"(?:(ceil|pad|min|excess)\((\w+), (\d+)\)|([A-Za-z_]\w*))\Z")
_COEFFICIENT = re.compile(r"(-?\d+)(?:/(\d+))?\Z")


@lru_cache(maxsize=65536)
def parse(text: str) -> Dim:
    """Read what `str` of a dim wrote; raises TorchperfError on anything else."""
    if len(text) > 1000:
        raise TorchperfError("a size expression of more than 1000 characters")
    if re.fullmatch(r"-?\d+", text):
        return int(text)
    terms = []
    for part in text.split(" + "):
        coefficient, divisor, factors = 1, 1, []
        for i, piece in enumerate(_split(part)):
            number = _COEFFICIENT.match(piece) if i == 0 else None
            factor = _FACTOR.match(piece)
            if number:
                coefficient, divisor = int(number[1]), int(number[2] or 1)
            elif factor:
                name, constant = (factor[2], int(factor[3])) if factor[1] else (factor[4], 0)
                if factor[1] in ("ceil", "pad") and constant == 0:
                    raise TorchperfError(f"`{text}` divides by zero")
                factors.append((factor[1] or "", name, constant))
            else:
                raise TorchperfError(f"`{text}` is not a size expression", facts=[("at", piece or "(nothing)")])
        if divisor == 0:
            raise TorchperfError(f"`{text}` divides by zero")
        terms.append(Term(coefficient, divisor, tuple(factors)))
    return Expr(tuple(terms))


def _split(part: str) -> list[str]:
    return part.strip().split("*")


def bind_dim(dim: Dim, sizes: Mapping[str, int]) -> int:
    """The integer that `dim` is at `sizes`."""
    return dim if isinstance(dim, int) else dim(sizes)


def too_large(what: str, sizes: Mapping[str, int]) -> TorchperfError:
    """What to raise where a size passes 64 bits."""
    given = ", ".join(f"{name} = {size:,}" for name, size in sizes.items())
    return TorchperfError(
        f"{what} is more than 2**63 - 1 at these sizes", facts=[("sizes", given or "none")], hint="give smaller sizes"
    )
