"""Where one set of expressions holds, and at which sizes to capture to find them.

Batch 1 is a regime of its own (a dim of size 1 makes some copies views), and so is each side of a break, such as the
chunk of a scan; beyond a chunk, its multiples are a third. Sizes are odd primes, never proportional to each other:
bad sizes fail silently (seq = 64 batch once fitted every slot, 664 of 951 ops wrongly).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

BATCHES = (3, 2, 5, 7, 4, 11)
LENGTHS = (211, 101, 307, 173, 137, 523, 4099, 251, 67, 47, 31, 23, 19, 13, 7, 5, 3)


@dataclass(frozen=True, slots=True)
class Range:
    """low <= size <= high (-1: unbounded); with step k > 0 only multiples of k, with k < 0 only others."""

    name: str
    low: int
    high: int
    step: int = 0

    def __contains__(self, size: int) -> bool:
        in_step = self.step == 0 or (size % abs(self.step) == 0) == (self.step > 0)
        return self.low <= size and (self.high == -1 or size <= self.high) and in_step


def ranges(sizes: Mapping[str, int], limits: Mapping[str, int], breaks: tuple[int, ...]) -> tuple[Range, ...]:
    """The regime in which `sizes` lie."""
    found = []
    for name, size in sizes.items():
        high = limits.get(name, -1)
        if name == "batch":
            found.append(Range(name, 1, 1) if size == 1 else Range(name, 2, high))
        elif size == 1:
            found.append(Range(name, 1, 1))
        else:
            low, step = 2, 0
            for chunk in sorted(breaks):
                if size <= chunk:
                    high = chunk if high == -1 else min(high, chunk)
                    break
                low, step = chunk + 1, chunk if size % chunk == 0 else -chunk
            found.append(Range(name, low, high, step))
    return tuple(found)


def points(regime: tuple[Range, ...], number: int = 6, straddle: tuple[int, ...] = ()) -> list[dict[str, int]]:
    """Sizes to capture at, all different in every free size as far as the range allows; the last is held out.

    Lengths are taken in turn from each side of every size in `straddle`, the longest first.
    """
    columns = {r.name: _straddling(r, number, straddle) or _column(r, number) for r in regime}
    for turn, name in enumerate(name for name in columns if name != "batch"):  # two lengths never go together
        first = 2 * turn % len(columns[name])
        columns[name] = columns[name][first:] + columns[name][:first]
    number = max([number, *map(len, columns.values())])
    chosen: list[dict[str, int]] = []
    for i in range(number):
        point = {name: column[i % len(column)] for name, column in columns.items()}
        if point not in chosen:
            chosen.append(point)
    return chosen


def probes(
    regime: tuple[Range, ...], asked: Mapping[str, int], seen: list[dict[str, int]]
) -> dict[str, dict[str, int]]:
    """Sizes at which the expressions are checked: those asked for, a very short and a very long sequence."""
    found = {"asked": dict(asked)}
    for r in regime:
        if r.name != "batch" and r.low != r.high:
            short = next((n for n in range(r.low, r.low + 2 * max(abs(r.step), 1) + 2) if n in r and n > 2), None)
            top = r.high if r.high != -1 else max(16381, 2 * asked[r.name])
            long = next((n for n in range(top, r.low, -1) if n in r), None)
            below = next((n for n in range((long or 0) - 1, r.low, -1) if n in r), None) if r.high != -1 else None
            for name, size in (("small", short), ("large", long), ("below", below)):
                if size is not None:
                    found[name] = {**seen[-1], r.name: size}
    return {name: point for name, point in found.items() if point not in seen}


def pinned(regime: tuple[Range, ...], sizes: Mapping[str, int]) -> tuple[Range, ...]:
    """The regime with each of `sizes` at that one value."""
    return tuple(Range(r.name, sizes[r.name], sizes[r.name]) if r.name in sizes else r for r in regime)


def narrowed(
    regime: tuple[Range, ...], asked: Mapping[str, int], seen: list[dict[str, int]], missed: set[str]
) -> tuple[Range, ...]:
    """The regime without the sequences shorter or longer than what was seen to hold; `missed` names failed probes."""
    ends = []
    for r in regime:
        if r.name != "batch" and r.low != r.high:
            held = [asked[r.name], *(point[r.name] for point in seen)]
            low = min(held) if "small" in missed else r.low
            high = r.high if "large" not in missed else max(held) if "below" in missed or r.high == -1 else r.high - 1
            r = Range(r.name, low, high, r.step)
        ends.append(r)
    return tuple(ends)


def _straddling(r: Range, number: int, at: tuple[int, ...]) -> list[int]:
    """Sizes of `r` on every side of the sizes `at`; none where these do not part it."""
    bends = [n for n in sorted(set(at)) if r.low < n - 2 and (r.high == -1 or n + 2 < r.high)]
    if r.name == "batch" or r.low == r.high or not bends:
        return []
    lows, highs = [r.low - 1, *bends], [*(n - 1 for n in bends), r.high]
    sides = []
    for low, high in zip(lows, highs, strict=True):
        shift = 0 if low < r.low else low
        legal = [shift + n for n in LENGTHS if shift + n in r and (high == -1 or shift + n <= high)]
        sides.append(legal[: max(number // len(lows), 3)])
    turns = itertools.zip_longest(*reversed(sides))
    return [n for turn in turns for n in turn if n is not None]


def _column(r: Range, number: int) -> list[int]:
    if r.low == r.high:
        return [r.low]
    if r.step > 0:
        start = -(-r.low // r.step)
        raw = [r.step * (start + k) for k in (2, 0, 5, 1, 9, 4, 7)]
    else:
        shift = 0 if r.low <= 2 else r.low
        raw = [shift + n for n in (BATCHES if r.name == "batch" else LENGTHS)]
    legal = [n for n in raw if n in r]
    if len(legal) < 3:  # a narrow range: take what there is
        top = r.high if r.high != -1 else r.low + 64
        legal += [n for n in range(top, r.low - 1, -1) if n in r and n not in legal]
    return legal[: max(number, 1)]
