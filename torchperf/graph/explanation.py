"""How a number comes about: a tree of lines, and the constants that they read, each with its reference."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Line:
    """One number.

    unit      s | B | 1 | FLOP, or what it is a count of
    lines     what it is made of: value = factor * their sum
    behind    how its inputs come about, one line an input; they do not add up to it
    formula   in the symbols of `inputs`; what follows a colon is a remark
    records   keys of the constants that the formula reads
    note      dims, what bounds it
    """

    name: str
    value: float
    unit: str
    lines: tuple[Line, ...] = ()
    factor: float = 1.0
    formula: str = ""
    inputs: tuple[tuple[str, float], ...] = ()
    records: tuple[str, ...] = ()
    note: str = ""
    behind: tuple[Line, ...] = ()

    @property
    def below(self) -> tuple[Line, ...]:
        return (*self.lines, *self.behind)

    def walk(self) -> Iterator[Line]:
        """The line and all below it."""
        yield self
        for line in self.below:
            yield from line.walk()


@dataclass(frozen=True, slots=True)
class Constant:
    """A value of a record, or a set of constants fitted together (value None), with its reference.

    rows, median_error, p90_error   of a fit: what it was fitted on, absolute shares on rows held out
    """

    key: str
    value: float | None
    unit: str
    basis: str
    source: str
    file: str
    condition: str = ""
    rows: str = ""
    median_error: float | None = None
    p90_error: float | None = None


@dataclass(frozen=True, slots=True)
class Explanation:
    """The headline numbers of an answer, and every constant that they read."""

    lines: tuple[Line, ...]
    constants: tuple[Constant, ...]


def summed(name: str, unit: str, lines: tuple[Line, ...], *, note: str = "") -> Line:
    """A line that is the sum of others."""
    return Line(name, sum(line.value for line in lines), unit, lines, note=note)


def filled(name: str, value: float, unit: str, lines: tuple[Line, ...], rest: str, *, note: str = "") -> Line:
    """A line of that value; what its lines lack, or have too much, stands as one more of the name `rest`."""
    missing = value - sum(line.value for line in lines)
    if abs(missing) > 1e-9 * max(abs(value), 1e-12):
        lines = (*lines, Line(rest, missing, unit))
    return Line(name, value, unit, lines, note=note)
