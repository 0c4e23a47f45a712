"""Explanation -> an indented tree, each number with its formula, the numbers in it, and where its constants stand."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from torchperf.graph.errors import TorchperfError
from torchperf.graph.explanation import Constant, Explanation, Line

from . import units
from .section import WIDTH

HEADLINE_DEPTH, DEPTH = 2, 12


def explanation_text(e: Explanation, what: str = "", depth: int | None = None) -> str:
    """The lines called `what` with all below them; without it the headline numbers, two levels deep.

    Raises TorchperfError where no line is called so.
    """
    found = named(e.lines, what) if what else list(e.lines)
    deep = depth or (DEPTH if what else HEADLINE_DEPTH)
    parts = ["\n".join(_tree(line, _Place(line), deep)) for line in found]
    shown = [one for line in found for one in _down_to(line, deep)]
    keys = {key for line in shown for key in line.records}
    constants = [c for c in e.constants if c.key in keys]
    if constants:
        parts.append("\n".join(["where the constants stand", *(line for c in constants for line in _constant(c))]))
    if not what:
        parts.append("name a line to see all below it: `matmul`, `optimizer`, `activations`, a module")
    return "\n\n".join(parts) + "\n"


def named(lines: Sequence[Line], what: str) -> list[Line]:
    """The lines called so; failing that those with it in their name; of a nest the outermost."""
    wanted = _plain(what)
    tests: tuple[Callable[[str], bool], ...] = (lambda name: name == wanted, lambda name: wanted in name)
    for test in tests:
        found = [line for root in lines for line in _outermost(root, test)]
        if found:
            return found
    names = list(dict.fromkeys(line.name for root in lines for line in root.walk()))
    near = get_close_matches(wanted, names, n=1)
    raise TorchperfError(
        f"nothing called `{what}` is explained here" + (f"; did you mean `{near[0]}`?" if near else ""),
        facts=[("headlines", ", ".join(f"`{line.name}`" for line in lines))],
        hint="leave it out to see the headline numbers and what they are made of",
    )


def _plain(text: str) -> str:
    return re.sub(r"[-_ ]+", " ", text.strip().lower())


def _outermost(line: Line, test: Callable[[str], bool]) -> Iterator[Line]:
    if test(_plain(line.name)):
        yield line
        return
    for one in line.below:
        yield from _outermost(one, test)


def _down_to(line: Line, depth: int) -> Iterator[Line]:
    yield line
    if depth:
        for one in line.below:
            yield from _down_to(one, depth - 1)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a line stands: levels below its root, how often it counts in the root, the records told just above."""

    root: Line
    level: int = 0
    times: float = 1.0
    told: tuple[str, ...] = ()
    counts: bool = True


def _tree(line: Line, place: _Place, depth: int) -> Iterator[str]:
    indent, root = "  " * place.level, place.root
    share = line.value * place.times / root.value if root.value else 0.0
    whole = f"  {units.percent(share)}" if place.level and place.counts else ""
    times = f"  {line.factor:,.6g} x {quantity(line.value / line.factor, line.unit)}" if line.factor != 1.0 else ""
    yield from _wrapped(f"{line.name}  {quantity(line.value, line.unit)}{whole}{times}", indent)
    below = indent + "    "
    if line.formula:
        yield from _wrapped(f"= {line.formula}", below)
    if line.inputs:
        yield from _wrapped(", ".join(f"{name} {number:,.6g}" for name, number in line.inputs), below)
    if line.note:
        yield from _wrapped(line.note, below)
    if line.records and line.records != place.told:
        yield from _wrapped(f"from {', '.join(line.records)}", below)
    told: tuple[str, ...] = ()
    for one in line.below if depth else ():
        counts = place.counts and one in line.lines
        yield from _tree(one, _Place(root, place.level + 1, place.times * line.factor, told, counts), depth - 1)
        told = one.records


def _wrapped(text: str, indent: str) -> list[str]:
    return textwrap.wrap(
        text, WIDTH, initial_indent=indent, subsequent_indent=indent + "  ", break_long_words=False,
        break_on_hyphens=False,
    )  # fmt: skip


def quantity(value: float, unit: str) -> str:
    """A number with its unit, signed."""
    sign, size = ("-" if value < 0 else ""), abs(value)
    if unit == "s":
        return sign + units.seconds(size)
    if unit == "B":
        return sign + units.size(size)
    if unit == "1":
        return sign + units.percent(size)
    if unit in ("FLOP", "FLOP/s", "B/s", "Hz", "W"):
        return sign + units.si(size, unit)
    return f"{sign}{size:,.6g} {unit}".rstrip()


def _constant(c: Constant) -> list[str]:
    """One constant: what it is, how it was come by, and in which file it stands."""
    if c.value is None:
        told = f"{c.rows}; {c.condition}" if c.condition else c.rows
        errors = f"median error {c.median_error:.1%}, p90 {c.p90_error:.1%}, held out"
        text = f"{c.key}: {c.basis} on {told}; {errors}"
    else:
        value = f"{c.value:,.6g}" if c.unit == "1" else quantity(c.value, c.unit)
        text = f"{c.key}: {value}, {c.basis}" + (f", {c.condition}" if c.condition else "")
    return _wrapped(f"{text} [{c.source}] {c.file}", "  ")
