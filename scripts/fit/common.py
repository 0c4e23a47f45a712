"""What every fit shares: thirds held out by hash, pooled errors, and the files that the fits are written to."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from simplex import FOLDS, Array, third

Tables = Mapping[str, Mapping[str, Any]]  # key -> the table of its fit
SALTS = (0, 1, 2)


def cross_validated(
    shapes: Sequence[tuple[int, ...]],
    predict: Callable[[Sequence[bool], Sequence[bool]], Array],
    salts: Iterable[int] = SALTS,
) -> Array:
    """[salts, rows]: what is predicted of each row by constants that saw no row of its third.

    predict  (rows to fit on, rows to predict) -> predictions of the second
    """
    found = []
    for salt in salts:
        thirds = np.array([third(salt, *shape) for shape in shapes])
        out = np.full(len(shapes), np.nan)
        for held in range(FOLDS):
            if (thirds == held).any() and (thirds != held).any():
                out[thirds == held] = predict((thirds != held).tolist(), (thirds == held).tolist())
        found.append(out)
    return np.array(found)


def pooled(errors: Array) -> tuple[float, float]:
    """Median and p90 of the absolute errors, pooled over the thirds, mean over the salts."""
    absolute = np.abs(np.atleast_2d(errors))
    return float(np.nanmedian(absolute, axis=1).mean()), float(np.nanpercentile(absolute, 90, axis=1).mean())


def toml(tables: Tables) -> str:
    """The text of one file of hardware_db/fits: a table a fit, in the order of their keys."""
    blocks = []
    for key in sorted(tables):
        lines = [f'["{key}"]']
        for name, value in tables[key].items():
            lines.append(f"{name} = {_value(value)}")
        blocks.append("\n".join(lines) + "\n")
    return "\n".join(blocks)


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{name} = {_value(one)}" for name, one in value.items()) + " }"
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value)


def write(path: Path, text: str) -> bool:
    """Write a file whole or not at all; whether it changed."""
    if path.is_file() and path.read_text(encoding="utf-8") == text:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)
    os.chmod(temporary, 0o644)
    Path(temporary).replace(path)
    return True
