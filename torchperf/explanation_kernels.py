"""Priced kernels -> lines: by kind, the longest of each with the terms of its price, the rest as one."""

from __future__ import annotations

from collections.abc import Iterable

from .answer import kernel_name
from .graph.explanation import Line, filled, summed
from .graph.op import Op
from .graph.price import Price
from .graph.work import Work

Row = tuple[float, Op, Work, Price]  # how often
SHOWN = 4  # kernels of a kind with lines of their own


def kernels(rows: Iterable[Row], name: str = "kernels") -> Line:
    """All rows as one line: kinds, longest first."""
    kinds: dict[str, list[Row]] = {}
    for row in rows:
        if row[0] and row[3].seconds > 0.0:
            kinds.setdefault(_kind(row[1], row[2]), []).append(row)
    lines = [_of_kind(kind, found) for kind, found in kinds.items()]
    return summed(name, "s", tuple(sorted(lines, key=lambda line: -line.value)))


def _kind(op: Op, work: Work) -> str:
    return f"{op.attr('axis')} {work.equation}" if work.kind == "collective" else work.kind


def _of_kind(kind: str, rows: list[Row]) -> Line:
    alike: dict[tuple[str, Work, float], list[Row]] = {}
    for row in rows:
        alike.setdefault((f"{kernel_name(row[1])} {row[1].module}".strip(), row[2], row[3].seconds), []).append(row)
    lines = [_kernel(name, found) for (name, _, _), found in alike.items()]
    lines.sort(key=lambda line: -line.value)
    shown, rest = (lines, []) if len(lines) <= SHOWN + 1 else (lines[:SHOWN], lines[SHOWN:])
    if rest:
        shown = [*shown, Line(f"{len(rest)} other kernels", sum(line.value for line in rest), "s")]
    return summed(kind, "s", tuple(shown))


def _kernel(name: str, alike: list[Row]) -> Line:
    count, (_, _, work, price) = sum(row[0] for row in alike), alike[0]
    dims = " ".join(f"{key}={size}" for key, size in work.dims)
    inputs = (("FLOPs", float(work.flops_executed)), ("bytes", float(work.nbytes)))
    one = call(price)
    return Line(
        name,
        count * price.seconds,
        "s",
        one.lines,
        count,
        "",
        inputs,
        (),
        f"{dims}; bound by {price.bound}".lstrip("; "),
    )


def call(price: Price, name: str = "a call") -> Line:
    """The terms of one call; what runs at the same time is taken off."""
    terms = tuple(
        Line(t.name, t.seconds, "s", formula=t.formula, inputs=t.inputs, records=t.records)
        for t in price.terms
        if t.seconds
    )
    return filled(name, price.seconds, "s", terms, "at the same time")
