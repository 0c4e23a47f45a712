"""Captures on disk: the file a user names, and the cache. No torch; a file is written whole or not at all.

A cache entry is keyed by the model's name and contents, the mode and the versions of torch, transformers and
torchperf; it lists every local file and environment variable that the model was made of, and is used only while all of
them are unchanged.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
import tempfile
from collections.abc import Mapping
from functools import lru_cache
from importlib import metadata
from pathlib import Path

from .. import __version__
from ..graph.check import MAX_BYTES
from ..graph.codec import decode, encode
from ..graph.errors import TorchperfError
from ..graph.graph import Capture


def cache_folder() -> Path:
    """The user's cache folder; `TORCHPERF_CACHE` names another."""
    given = os.environ.get("TORCHPERF_CACHE")
    if given:
        return Path(given)
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "torchperf"
    base = os.environ.get("XDG_CACHE_HOME") or os.environ.get("LOCALAPPDATA")
    return (Path(base) if base else Path.home() / ".cache") / "torchperf"


def versions() -> tuple[str, ...]:
    """Versions of what makes a capture, read without importing any of it."""
    found = [__version__]
    for package in ("torch", "transformers"):
        try:
            found.append(metadata.version(package))
        except metadata.PackageNotFoundError:
            found.append("none")
    return tuple(found)


@lru_cache(maxsize=1)
def _own_code() -> str:
    """Digest of what makes a capture: an entry of other code is never used, released or not."""
    digest = hashlib.sha256()
    rooms = (Path(__file__).parent, Path(__file__).parent.parent / "graph")
    for path in sorted(p for room in rooms for p in room.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def key(*parts: str) -> str:
    """The name of a cache entry."""
    text = "\0".join((*parts, *versions(), _own_code()))
    return hashlib.sha256(text.encode()).hexdigest()[:40]


def read(path: Path) -> Capture:
    """The capture in a file that the user names."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise TorchperfError(
                f"`{path}` is too large for a graph", facts=[("bytes", f"{path.stat().st_size:,}, of {MAX_BYTES:,}")]
            )
        data = path.read_bytes()
    except OSError as error:
        raise TorchperfError(f"cannot read `{path}`", facts=[("reason", error.strerror or str(error))]) from None
    return decode(data, str(path))[0]


def write(path: Path, capture: Capture, files: Mapping[str, str] | None = None) -> None:
    """Write to a temporary file beside `path`, then rename. Raises TorchperfError; nothing half-written stays."""
    data = encode(capture, files)
    temporary: str | None = None
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(temporary, path)
        temporary = None
    except (OSError, ValueError) as error:  # ValueError: a name that holds what none can
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise TorchperfError(
            f"cannot write `{path}`", facts=[("reason", reason)],
            hint="name a file in a folder that exists, that you may write to, and that has room",
        ) from None  # fmt: skip
    finally:  # an interrupted run too leaves nothing behind
        if temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(temporary)


def digest(name: str) -> str:
    """SHA-256 of a file's contents, or of the value of an environment variable `$NAME` (unset differs from empty)."""
    if name.startswith("$"):
        value = os.environ.get(name[1:])
        return hashlib.sha256(repr(value).encode()).hexdigest()
    return hashlib.sha256(Path(name).read_bytes()).hexdigest()


def cached(name: str) -> tuple[Capture, dict[str, str]] | None:
    """The entry of that key, or None where there is none, it is damaged, or a file of it has changed."""
    try:
        capture, files = decode((cache_folder() / f"{name}.json").read_bytes())
        if all(digest(name) == sha for name, sha in files.items()):
            return capture, files
    except (OSError, RuntimeError, ValueError, TorchperfError):  # RuntimeError: no home folder is known
        pass
    return None


def keep(name: str, capture: Capture, files: Mapping[str, str]) -> None:
    """Put an entry into the cache; a folder that cannot be written is no reason to fail."""
    with contextlib.suppress(OSError, RuntimeError, ValueError, TorchperfError):
        folder = cache_folder()
        folder.mkdir(parents=True, exist_ok=True)
        write(folder / f"{name}.json", capture, files)
