"""A sum over the tokens of an answer without a term for each."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise

TOLERANCE = 2e-4
PARTS = 4


def summed(of: Callable[[int], float], first: int, last: int, breaks: Iterable[int] = ()) -> float:
    """of(first) + of(first + 1) + ... + of(last), for a function that is smooth between the `breaks`.

    Each range is cut in half until its middle lies within TOLERANCE of the straight line between its ends; a range of
    a straight line sums to its length times the mean of its ends. A break is the last whole number of its range.
    Evaluations depend on the shape of the function, not on the number of terms.
    """
    if last < first:
        return 0.0
    known: dict[int, float] = {}

    def at(k: int) -> float:
        if k not in known:
            known[k] = of(k)
        return known[k]

    total, low = 0.0, first
    for end in (*sorted({b for b in breaks if first <= b < last}), last):
        edges = [low + (end - low) * i // PARTS for i in range(PARTS + 1)]
        total += at(low) + sum(_after(at, a, b) for a, b in pairwise(edges) if b > a)
        low = end + 1
    return total


def _after(at: Callable[[int], float], low: int, high: int) -> float:
    """at(low + 1) + ... + at(high)."""
    if high - low <= 1:
        return at(high) if high > low else 0.0
    middle = (low + high) // 2
    line = at(low) + (at(high) - at(low)) * (middle - low) / (high - low)
    if abs(at(middle) - line) > TOLERANCE * at(middle):
        return _after(at, low, middle) + _after(at, middle, high)
    return _straight(at, low, middle) + _straight(at, middle, high)


def _straight(at: Callable[[int], float], low: int, high: int) -> float:
    n = high - low
    return n * at(low) + (at(high) - at(low)) * (n + 1) / 2
