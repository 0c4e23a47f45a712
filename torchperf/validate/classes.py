"""Checked rows -> errors by class (one GPU with one runtime; each alone), and the file that keeps them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ..graph.confidence import ANY, ErrorClass
from ..graph.validation import Checked
from .spread import spread

Class = tuple[str, str, str]  # metric, GPU, runtime


def classes(rows: Iterable[Checked], of: Callable[[Checked], Class]) -> tuple[ErrorClass, ...]:
    """Errors of each class that has rows, and of its GPU and its runtime by themselves; sorted."""
    groups: dict[Class, list[Checked]] = {}
    for row in rows:
        metric, gpu, runtime = of(row)
        for key in ((metric, gpu, runtime), (metric, ANY, runtime), (metric, gpu, ANY)):
            groups.setdefault(key, []).append(row)
    return tuple(_class(key, groups[key]) for key in sorted(groups))


def _class(key: Class, rows: list[Checked]) -> ErrorClass:
    s = spread("", rows)
    sources = tuple(sorted({row.group for row in rows}))
    return ErrorClass(*key, s.rows, s.median, s.p90, sources, s.yardstick_median, s.yardstick_p90)


def as_toml(kind: str, found: Iterable[ErrorClass]) -> str:
    """The text of a validated/ file of the database."""
    lines = [
        f"# Absolute errors of measured runs by class, by `torchperf validate {kind} --data FILE --write FILE`.",
        "# `any` stands for all GPUs or all runtimes. Runs that constants of a runtime were fitted on are among them:",
        f"# see the runtime's own record. Sources are keys of torchperf/validate/{kind}_map.toml.",
    ]
    for c in found:
        lines += [
            "", "[[classes]]", f'metric = "{c.metric}"', f'gpu = "{c.gpu}"', f'runtime = "{c.runtime}"',
            f"rows = {c.rows}", f"median_error = {c.median_error:.4f}", f"p90_error = {c.p90_error:.4f}",
        ]  # fmt: skip
        if c.roofline_median is not None and c.roofline_p90 is not None:
            lines += [f"roofline_median = {c.roofline_median:.4f}", f"roofline_p90 = {c.roofline_p90:.4f}"]
        lines.append(f"sources = [{', '.join(chr(34) + s + chr(34) for s in c.sources)}]")
    return "\n".join(lines) + "\n"
