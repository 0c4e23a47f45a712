"""One TOML file being read: each take checks its key, and every fault of the file is told at once."""

from __future__ import annotations

import math
import sys
from collections.abc import Collection
from typing import Any

from ..graph.errors import TorchperfError
from ..graph.system import Sourced
from .units import Quantity

BASES = ("datasheet", "whitepaper", "measured", "fitted", "derived", "assumed")
_MISSING = object()
_KINDS = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    dict: "a table",
    list: "a list",
}


class Faults:
    """The faults found in one file so far, as `file:key: what`."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.found: list[str] = []

    def add(self, key: str, what: str) -> None:
        """Note one fault and read on."""
        self.found.append(f"{self.file}:{key}: {what}")

    def check(self) -> None:
        """Raise a TorchperfError that lists every fault, if there is one."""
        if self.found:
            count = f"{len(self.found)} fault" + ("s" if len(self.found) > 1 else "")
            facts = [("fault", fault) for fault in self.found]
            raise TorchperfError(f"`{self.file}` has {count}", facts=facts)


class Record:
    """A table in a file: a wrong or missing key becomes a fault, `close` tells unknown keys."""

    def __init__(self, table: dict[str, Any], faults: Faults, sources: Collection[str], at: str = "") -> None:
        self._table, self._key = table, at
        self.faults, self.sources = faults, sources
        self._known: dict[str, None] = {}
        self._taken: set[str] = set()
        self._children: list[Record] = []

    def path(self, key: str) -> str:
        """The dotted key as a fault names it."""
        return f"{self._key}.{key}" if self._key else key

    def has(self, key: str) -> bool:
        """Whether the file gives `key`."""
        return key in self._table

    def _take(self, key: str, kind: type, default: Any = _MISSING) -> Any:
        self._taken.add(key)
        self._known[key] = None
        value = self._table.get(key, _MISSING)
        if value is _MISSING:
            if default is _MISSING:
                self.faults.add(self.path(key), "missing")
            return kind() if default is _MISSING else default
        wanted = (int, float) if kind is float else (kind,)
        if not isinstance(value, wanted) or (isinstance(value, bool) and kind is not bool):
            self.faults.add(self.path(key), f"must be {_KINDS[kind]}, not `{value!r}`")
            return kind()
        if kind is float and isinstance(value, int) and abs(value) > sys.float_info.max:
            return math.inf if value > 0 else -math.inf  # too long for a float: told as one that is not finite
        return value

    def text(self, key: str, allowed: Collection[str] = ()) -> str:
        """A text that is not empty, one of `allowed` if given."""
        before = len(self.faults.found)
        value: str = self._take(key, str)
        if len(self.faults.found) == before:
            if not value.strip():
                self.faults.add(self.path(key), "empty")
            elif allowed and value not in allowed:
                known = ", ".join(f"`{name}`" for name in allowed)
                self.faults.add(self.path(key), f"`{value}` is none of {known}")
        return value

    def texts(self, key: str, allowed: Collection[str] = ()) -> tuple[str, ...]:
        """A list of texts, each one of `allowed` if given; empty when the key is absent."""
        values: list[Any] = self._take(key, list, [])
        if not all(isinstance(value, str) for value in values):
            self.faults.add(self.path(key), "must be a list of texts")
            return ()
        for value in values:
            if allowed and value not in allowed:
                self.faults.add(self.path(key), f"`{value}` is none of {', '.join(f'`{name}`' for name in allowed)}")
        return tuple(values)

    def whole(self, key: str) -> int:
        """A bare whole number, such as a year."""
        return int(self._take(key, int))

    def flag(self, key: str) -> bool:
        """A bare true or false."""
        return bool(self._take(key, bool))

    def number(self, key: str) -> float:
        """A bare number, finite and not negative."""
        value = float(self._take(key, float))
        if not math.isfinite(value) or value < 0:
            self.faults.add(self.path(key), f"`{value}` must be finite and not negative")
        return value

    def table(self, key: str, *, optional: bool = False) -> Record:
        """A table inside this one; an absent optional one reads as empty."""
        before = len(self.faults.found)
        table = self._take(key, dict, {} if optional else _MISSING)
        wrong = len(self.faults.found) > before  # one fault, not one for each key of what is not there
        faults = Faults(self.faults.file) if wrong else self.faults
        child = Record(table, faults, self.sources, self.path(key))
        self._children.append(child)
        return child

    def source(self, key: str = "source") -> str:
        """A key that sources.bib has."""
        before = len(self.faults.found)
        value = self.text(key)
        if len(self.faults.found) == before and value not in self.sources:
            self.faults.add(self.path(key), f"`{value}` is not in sources.bib")
        return value

    def sourced(self, key: str, quantity: Quantity, scope: str, *, condition: bool = False) -> Sourced:
        """A value with its reference, in base units; `condition` makes that field required."""
        table = self.table(key)
        before = len(table.faults.found)
        value = table._take("value", float)
        valid = len(table.faults.found) == before
        unit, basis, source = table.text("unit"), table.text("basis", BASES), table.source()
        text = table.text("condition") if condition or table.has("condition") else ""
        stated = table.text("scope", (scope,))
        if unit and unit not in quantity.units:
            known = ", ".join(f"`{u}`" for u in quantity.units)
            table.faults.add(table.path("unit"), f"`{unit}` is no unit of {quantity.name}: {known}")
        base = float(value) * quantity.units.get(unit, 1.0)
        what = quantity.complaint(base) if valid and unit in quantity.units else ""
        if what:
            table.faults.add(table.path("value"), f"`{value}` {what}")
        return Sourced(base, quantity.base, basis, source, text, stated)

    def optional(self, key: str, quantity: Quantity, scope: str) -> Sourced | None:
        """As `sourced`, None when the file does not give the key; `close` names it among the known."""
        self._known[key] = None
        return self.sourced(key, quantity, scope) if self.has(key) else None

    def given(self) -> tuple[str, ...]:
        """The keys that the file gives here, in its order."""
        return tuple(self._table)

    def among(self, allowed: Collection[str]) -> tuple[str, ...]:
        """The keys of `allowed` that the file gives, in its order; `close` reports others and names these."""
        self._known.update(dict.fromkeys(allowed))
        return tuple(key for key in self._table if key in allowed)

    def close(self) -> None:
        """Report each key, here and below, that nothing asked for."""
        for key in self._table:
            if key not in self._taken:
                known = ", ".join(f"`{k}`" for k in self._known)
                self.faults.add(self.path(key), f"unknown key, known here: {known}")
        for child in self._children:
            child.close()
