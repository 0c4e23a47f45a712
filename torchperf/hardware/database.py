"""Where the records lie, and which one a name means: its exact name, or an alias that it alone has."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from ..graph import toml_text
from ..graph.errors import TorchperfError
from .record import Faults, Record

ENVIRONMENT = "TORCHPERF_HARDWARE_DB"
_QUOTED = re.compile(r"\"([^\"]*)\"|'([^']*)'")
_BIB_KEY = re.compile(r"^\s*@\w+\s*\{\s*([^,\s]+)\s*,", re.MULTILINE)


def normal(name: str) -> str:
    """A name as it is compared: lower case, `_` and blanks as `-`."""
    return re.sub(r"[\s_]+", "-", name.strip().lower())


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def bib_keys(text: str) -> frozenset[str]:
    """The entry keys of a BibTeX text."""
    return frozenset(_BIB_KEY.findall(text))


@lru_cache(maxsize=8)
def _bib_keys_of(path: Path, stamp: int) -> frozenset[str]:
    return bib_keys(path.read_text(encoding="utf-8"))


def _sources(path: Path) -> frozenset[str]:
    return _bib_keys_of(path, path.stat().st_mtime_ns) if path.is_file() else frozenset()


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # a name that is too long, or holds what no name can
        return False


@dataclass(frozen=True, slots=True)
class Database:
    """A folder of records: accelerators/, interconnects/, systems/, runtimes/ and sources.bib."""

    root: Path

    def names(self, kind: str) -> tuple[str, ...]:
        """The names of one kind, sorted: a record's file bears its name."""
        return tuple(sorted(path.stem for path in (self.root / kind).glob("*.toml")))

    def shown(self, path: Path) -> str:
        """A path for messages: from the database's folder on, or as it was given."""
        inside = path.is_relative_to(self.root)
        return f"{self.root.name}/{path.relative_to(self.root).as_posix()}" if inside else str(path)

    def texts(self, kind: str, key: str) -> Iterator[tuple[Path, frozenset[str]]]:
        """The text or the list of texts that each record of one kind gives as `key`.

        Read without parsing the file, so that a look-up among many costs little.
        """
        line = re.compile(rf"^{key}[ \t]*=[ \t]*(\[[^\]]*\]|\"[^\"\n]*\"|'[^'\n]*')", re.MULTILINE)
        for name in self.names(kind):
            path = self.root / kind / f"{name}.toml"
            found = line.search(path.read_text(encoding="utf-8", errors="replace"))
            yield path, frozenset(a or b for a, b in _QUOTED.findall(found[1])) if found else frozenset()

    def parsed(self, path: Path) -> dict[str, Any]:
        """The TOML table of a file; a TorchperfError names the line that does not parse."""
        try:
            data = path.read_bytes()
        except OSError as error:
            why = (error.strerror or "unreadable").lower()
            raise TorchperfError(f"cannot read `{self.shown(path)}`: {why}") from None
        table: dict[str, Any] = toml_text.parsed(data, self.shown(path))
        return table

    def record(self, path: Path) -> Record:
        """A file ready to be read; sources are those of the database and of a sources.bib beside the file."""
        sources = _sources(self.root / "sources.bib") | _sources(path.parent / "sources.bib")
        return Record(self.parsed(path), Faults(self.shown(path)), sources)

    def find(self, kind: str, name: str, base: Path | None = None) -> Path:
        """The file that `name` means; one with a suffix `.toml` or a path separator is a path from `base`.

        A TorchperfError lists the candidates if two records have that alias, the nearest names if none has.
        """
        one = kind[:-1]
        if name.endswith(".toml") or "/" in name or os.sep in name:
            path = (base or Path()) / Path(name).expanduser()
            if not _is_file(path):
                hint = f"a name without `.toml` and `/` is looked up: {_quoted(self.names(kind))}"
                raise TorchperfError(f"there is no {one} file `{name}`", hint=hint)
            return path
        wanted = normal(name)
        exact = self.root / kind / f"{wanted}.toml"
        if wanted and _is_file(exact):
            return exact
        aliases = {path: frozenset(map(normal, texts)) for path, texts in self.texts(kind, "aliases")}
        found = [path for path, known in aliases.items() if wanted in known]
        if len(found) == 1:
            return found[0]
        if found:
            names = _quoted(path.stem for path in found)
            hint = f"name one of them, such as `{found[-1].stem}`"
            raise TorchperfError(f"`{name}` is more than one {one}: {names}", hint=hint)
        raise self._unknown(one, name, {path.stem: known for path, known in aliases.items()})

    def _unknown(self, one: str, name: str, known: dict[str, frozenset[str]]) -> TorchperfError:
        import difflib  # only a failing look-up pays for it

        wanted = normal(name)
        near = [stem for stem in known if wanted and stem.startswith(wanted)]
        spelled = {alias: stem for stem, aliases in known.items() for alias in (*aliases, stem)}
        near += [spelled[match] for match in difflib.get_close_matches(wanted, spelled, n=6, cutoff=0.6)]
        near = list(dict.fromkeys(near))[:4]
        hint = f"{'nearest' if near else 'known'}: {_quoted(near or known)}; or give a file: `./my.toml`"
        where = self.shown(self.root / f"{one}s")
        return TorchperfError(f"unknown {one} `{name}`", facts=(("where", where),), hint=hint)


def database() -> Database:
    """The database in use: TORCHPERF_HARDWARE_DB, else that of the package, else that of the checkout."""
    given = os.environ.get(ENVIRONMENT)
    package = Path(__file__).resolve().parent.parent
    for root in [Path(given)] if given else [package / "hardware_db", package.parent / "hardware_db"]:
        if root.is_dir():
            return Database(root)
    if given:
        raise TorchperfError(f"`{ENVIRONMENT}` names no folder: `{given}`")
    hint = f"reinstall torchperf, or set `{ENVIRONMENT}` to a folder that holds it"
    raise TorchperfError("the hardware database is missing", hint=hint)
