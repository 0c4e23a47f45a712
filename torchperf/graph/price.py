"""What one op costs on one device."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Term:
    """One term of a price: seconds, the formula as text, and the source keys of the constants in it.

    inputs   (symbol of the formula, its number)
    records  where the constants stand: a fit by its name, a value by its key in the device's or link's file
    """

    name: str  # floor | compute | memory
    seconds: float
    formula: str
    sources: tuple[str, ...] = ()
    inputs: tuple[tuple[str, float], ...] = ()
    records: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Price:
    """Device time of one kernel. `bound` names the term that decides: compute | memory | launch | none."""

    seconds: float
    bound: str
    terms: tuple[Term, ...] = ()


Prices = tuple[tuple[Price, ...], ...]  # of every stored op, block by block
