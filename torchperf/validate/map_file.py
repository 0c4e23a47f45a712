"""Reading a map of measured runs: a TOML file against its types, each fault by file and key."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from ..graph.errors import TorchperfError

Map = TypeVar("Map", bound=msgspec.Struct)


def read(path: Path, kind: type[Map]) -> Map:
    """The file as `kind`, read again when it changes; raises TorchperfError that names the file and the key at fault.

    `kind.faults()` says what its types cannot.
    """
    found: Map = _read(path, path.stat().st_mtime_ns if path.is_file() else 0, kind)
    return found


@lru_cache(maxsize=4)
def _read(path: Path, stamp: int, kind: Any) -> Any:
    try:
        found = msgspec.toml.decode(path.read_bytes(), type=kind)
    except OSError as error:
        raise TorchperfError(f"cannot read `{path}`", facts=[("reason", error.strerror or str(error))]) from None
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at ")
        key = where.strip("`").removeprefix("$.") or "?"
        raise TorchperfError(f"`{path.name}:{key}` {what}", hint="mend the entry") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise TorchperfError(f"`{path.name}` is no TOML", facts=[("reason", str(error))]) from None
    faults = list(found.faults())
    if faults:
        raise TorchperfError(f"`{path.name}` has {len(faults)} faults", facts=[("fault", fault) for fault in faults])
    return found


def broken(tables: Iterable[tuple[str, Iterable[object]]], names: Iterable[str]) -> Iterator[str]:
    """The fields of these names, in any entry of any table, that are no regular expression."""
    for kind, entries in tables:
        for i, entry in enumerate(entries):
            for name in names:
                text = getattr(entry, name, "")
                try:
                    re.compile(text)
                except re.error as error:
                    yield f"{kind}[{i}].{name}: `{text}` is no regular expression: {error}"
