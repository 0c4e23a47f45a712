"""Cells of a CSV as numbers, and rows that can be told: whatever a cell holds, a number in bounds or one error."""

from __future__ import annotations

import math

from ..graph.errors import TorchperfError
from ..graph.validation import Checked

LARGEST = 2**63 - 1


def whole(text: str, name: str, least: int = 1) -> int:
    """A count, which may be written as `4` or `4.0`. Raises TorchperfError, naming the cell."""
    value = _number(text, name)
    if value < least:
        raise TorchperfError(f"`{name}` is `{text}`: {'not positive' if least else 'negative'}")
    if value != math.floor(value) or value > LARGEST:
        raise TorchperfError(f"`{name}` is `{text}`: not a whole number of 64 bits")
    try:
        return int(text)
    except ValueError:
        return int(value)


def positive(text: str, name: str) -> float:
    """A measured figure. Raises TorchperfError, naming the cell."""
    value = _number(text, name)
    if value <= 0:
        raise TorchperfError(f"`{name}` is `{text}`: not positive")
    return value


def _number(text: str, name: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise TorchperfError(f"a cell is no number and cannot be read: `{name}` is `{text[:40]}`")
    return value


def told(row: Checked) -> Checked:
    """The row, if its figures and its error are numbers; TorchperfError where sizes beyond any machine overflow."""
    figures = (row.measured, row.predicted, row.yardstick or 0.0)
    if row.measured <= 0 or not all(map(math.isfinite, figures)) or not math.isfinite(row.error):
        raise TorchperfError(f"its {row.metric} is not finite: a size or a figure is out of bounds")
    if row.yardstick is not None and not math.isfinite(row.yardstick / row.measured):
        raise TorchperfError(f"its {row.metric} is out of bounds")
    return row
