"""Tapes of one model at several sizes -> one number, or expression, a slot; and the check of these at a new size."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..graph.errors import TorchperfError
from . import fold
from .sizes import Fitter
from .tape import Tape


class Unfit(Exception):
    """Captures of one regime do not line up; the reason is shown to the user."""


def fit(first: Tape, others: list[Tape], points: list[dict[str, int]], constants: tuple[int, ...]) -> list[fold.Fitted]:
    """One fitted number a slot of `first`. The last capture is held out and must be met exactly."""
    for other, point in zip(others, points[1:], strict=True):
        if other.keys != first.keys or other.modules != first.modules:
            raise Unfit(f"the model runs other operators at {show(point)} than at {show(points[0])}")
        if canonical(other.storages) != canonical(first.storages):
            raise Unfit(f"the model shares other storages at {show(point)} than at {show(points[0])}")
    tapes = [first, *others]
    fit_points = points if len(points) < 4 else points[:-1]
    fitter = Fitter(fit_points, (*constants, 16, 32))
    held_out = points[-1] if len(points) >= 4 else None
    columns = list(zip(*(tape.slots for tape in tapes), strict=True))
    known: dict[tuple[bool, tuple[Any, ...]], fold.Fitted] = {}
    fitted: list[fold.Fitted] = []
    for values in columns:
        key = (isinstance(values[0], float), values)
        found = known.get(key)
        if found is None:
            expression = fitter.fit(values[: len(fit_points)])
            if expression is None:
                raise Unfit(f"no expression of {', '.join(points[0])} gives {values}")
            if held_out is not None and not meets(expression, held_out, values[-1]):
                raise Unfit(f"`{expression}` gives another number than the model at {show(held_out)}")
            found = known[key] = expression
        fitted.append(found)
    return fitted


def meets(expression: fold.Fitted, point: Mapping[str, int], value: int | float) -> bool:
    try:
        got = expression if isinstance(expression, (int, float)) else expression(point)
    except TorchperfError:
        return False
    return got == value or (got != got and value != value) or abs(got - value) <= 1e-9 * abs(value)


def show(point: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {size}" for name, size in point.items())


def misses(first: Tape, fitted: list[fold.Fitted], other: Tape, point: Mapping[str, int]) -> str:
    """Why the expressions do not give the tape that was recorded at `point`, or ""."""
    if other.keys != first.keys or other.modules != first.modules:
        return f"the model runs other operators at {show(point)}"
    if canonical(other.storages) != canonical(first.storages):
        return f"the model shares other storages at {show(point)}"
    known: dict[tuple[int, Any], bool] = {}
    for expression, value in zip(fitted, other.slots, strict=True):
        key = (id(expression), value)
        if key not in known:
            known[key] = meets(expression, point, value)
            if not known[key]:
                return f"`{expression}` gives another number than the model at {show(point)}"
    return ""


def canonical(ids: list[int]) -> list[int]:
    seen: dict[int, int] = {}
    return [seen.setdefault(i, len(seen)) for i in ids]
