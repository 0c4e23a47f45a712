"""Rows -> median and 90th percentile of the absolute error, by group and over all."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..graph.validation import Checked, Skipped, Spread, Validation


def spread(group: str, rows: Sequence[Checked]) -> Spread:
    """The spread of the absolute errors of rows of one group."""
    errors = np.abs([row.error for row in rows])
    plain = [abs(row.yardstick / row.measured - 1.0) for row in rows if row.yardstick is not None]
    return Spread(
        group,
        len(rows),
        float(np.median(errors)),
        float(np.quantile(errors, 0.9)),
        float(np.median(plain)) if plain else None,
        float(np.quantile(plain, 0.9)) if plain else None,
    )


def validation(file: str, rows: Sequence[Checked], skipped: Sequence[Skipped]) -> Validation:
    """The whole answer: groups in alphabetical order, then `all`."""
    groups: dict[str, list[Checked]] = {}
    for row in rows:
        groups.setdefault(f"{row.group} {row.part}".strip(), []).append(row)
    table = [spread(group, groups[group]) for group in sorted(groups)]
    if len(table) > 1:
        table.append(spread("all", rows))
    return Validation(file, tuple(rows), tuple(skipped), tuple(table))
