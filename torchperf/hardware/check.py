"""A file checked by itself: what kind of record it is, each fault of its form, each law that it breaks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..graph.errors import TorchperfError
from ..graph.runtime import Runtime
from ..graph.system import Accelerator, Fit, Interconnect, System
from . import schema
from .database import Database, database
from .laws import broken
from .load import load_accelerator, load_interconnect, load_runtime, load_system
from .record import Faults

Noun = Accelerator | Interconnect | System | Runtime
_TELLING = {
    "accelerators_per_node": "systems",
    "pair_bandwidth": "interconnects",
    "allocator_fraction": "runtimes",
}
_LOADERS: dict[str, Callable[[str], Noun]] = {
    "accelerators": load_accelerator,
    "interconnects": load_interconnect,
    "systems": load_system,
    "runtimes": load_runtime,
}


def kind_of(table: dict[str, Any]) -> str:
    """Which folder a file belongs to, by its keys; `accelerators` where none tells."""
    tables = [value for value in table.values() if isinstance(value, dict)]
    if tables and len(tables) == len(table) and all("parameters" in value for value in tables):
        return "fits"
    return next((kind for key, kind in _TELLING.items() if key in table), "accelerators")


def check_file(path: str) -> Noun | tuple[Fit, ...]:
    """The record in a file, or its fits; a TorchperfError tells every fault, of form first, then of sense."""
    db, file = database(), Path(path).expanduser()
    if not file.is_file():
        raise TorchperfError(f"there is no file `{path}`")
    kind = kind_of(db.parsed(file))
    if kind == "fits":
        return _fits(db, file)
    given = path if path.endswith(".toml") or "/" in path else f"./{path}"
    record = _LOADERS[kind](given)
    faults = Faults(db.shown(file))
    for key, what in broken(record):
        faults.add(key, what)
    faults.check()
    return record


def _fits(db: Database, file: Path) -> tuple[Fit, ...]:
    record = db.record(file)
    fits = schema.fits(record, file.parent.name)
    record.close()
    record.faults.check()
    return fits
