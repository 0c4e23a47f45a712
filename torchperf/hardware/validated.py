"""validated/*.toml of the database: errors of measured runs by class, as `torchperf validate --write` wrote them."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from ..graph.confidence import ErrorClass
from ..graph.errors import TorchperfError
from .database import database

KINDS = ("training", "inference")


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    classes: tuple[dict[str, Any], ...]


def validated(kind: str) -> tuple[ErrorClass, ...]:
    """The classes of one kind of runs; () where the database has no such file. Raises TorchperfError on a bad one."""
    path = database().root / "validated" / f"{kind}.toml"
    return _read(path, path.stat().st_mtime_ns) if path.is_file() else ()


@lru_cache(maxsize=8)
def _read(path: Path, stamp: int) -> tuple[ErrorClass, ...]:
    shown = database().shown(path)
    try:
        rows = msgspec.toml.decode(path.read_bytes(), type=_File).classes
        found = tuple(msgspec.convert(row, ErrorClass, strict=False) for row in rows)
    except (OSError, ValueError, RecursionError, msgspec.DecodeError) as error:
        raise TorchperfError(
            f"cannot read `{shown}`", facts=[("reason", str(error))],
            hint="write it again with `torchperf validate training|inference --data FILE --write FILE`",
        ) from None  # fmt: skip
    for row in found:
        if not (row.rows > 0 and row.median_error >= 0 and row.p90_error >= row.median_error and row.sources):
            raise TorchperfError(
                f"`{shown}` has a class without rows, errors or sources",
                facts=[("class", f"{row.metric} of {row.gpu} with {row.runtime}")],
            )
    return found
