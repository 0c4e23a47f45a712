"""Bundled configs of well-known models, one transformers `config.json` a file.

Each file carries one key of our own, `torchperf`: `source` (where the config or the table of sizes is
published), `parameters` (the exact total, a tied weight counted once) and, where the file differs from
what is published, a `note`.
"""

import difflib
import json
import re
from pathlib import Path
from typing import Any

from ..graph.errors import TorchperfError

_FOLDER = Path(__file__).resolve().parent
_OWN_KEY = "torchperf"


def names() -> tuple[str, ...]:
    """The names of all bundled configs, families together and smaller models first."""
    return tuple(sorted((file.stem for file in _FOLDER.glob("*.json")), key=_natural))


def path(name: str) -> Path:
    """The file of the bundled config `name`.

    Raises TorchperfError, with the nearest names, when there is no such config.
    """
    known = names()
    if name not in known:
        raise _unknown(name, known)
    return _FOLDER / f"{name}.json"


def load(name: str) -> dict[str, Any]:
    """The config `name` as transformers reads it: the parsed file without our own key.

    Raises TorchperfError when there is no such config.
    """
    content = _parsed(name)
    del content[_OWN_KEY]
    return content


def notes(name: str) -> dict[str, Any]:
    """What we say about the config `name`: `source`, `parameters` and perhaps `note`.

    Raises TorchperfError when there is no such config.
    """
    own: dict[str, Any] = _parsed(name)[_OWN_KEY]
    return own


def _parsed(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path(name).read_text(encoding="utf-8"))
    return content


def _unknown(name: str, known: tuple[str, ...]) -> TorchperfError:
    near = difflib.get_close_matches(name.lower(), known, n=3, cutoff=0.5)
    listed = "`torchperf models` lists them all"
    hint = f"did you mean {' or '.join(f'`{n}`' for n in near)}? {listed}" if near else listed
    return TorchperfError(f"no bundled config is named `{name}`", hint=hint)


def _natural(name: str) -> list[tuple[int, float, str]]:
    """Sort key that reads digits as numbers and m, b, t after them as sizes: 760m < 1.3b < 13b < 1t."""
    scale = {"k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}
    parts = re.findall(r"(\d+(?:\.\d+)?)([kmbt]?)(?![a-z0-9])|(\d+(?:\.\d+)?)|([^\d]+)", name)
    return [
        (1, 0.0, text) if text else (0, float(number or bare) * scale.get(unit, 1), "")
        for number, unit, bare, text in parts
    ]
