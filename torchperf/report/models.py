"""Bundled configs -> one table."""

from __future__ import annotations

from collections.abc import Sequence

from . import units
from .section import Section


def table(models: Sequence[tuple[str, int, str, str]]) -> Section:
    """(name, parameters, source, note) a row; the notes follow the table, each once."""
    rows = tuple((name, units.count(parameters), source) for name, parameters, source, _ in models)
    noted: dict[str, list[str]] = {}
    for name, _, _, note in models:
        if note:
            noted.setdefault(note, []).append(name)
    items = tuple(f"{', '.join(names)}: {note}" for note, names in noted.items())
    return Section("model", ("parameters", "source"), rows, right=(1,), items=items)
