"""The words of a graph's text: names, lists of storages, and what is said where one of them is malformed."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from .dtype import BITS
from .op import PHASES

HEADER = "torchperf graph 1"
BARE = r"[A-Za-z0-9_.*/-]+"
WORD = rf'({BARE}|"(?:[^"\\]|\\.)*")'
INT = r"(-?\d+)"
DIMS = r"\[([^\[\]]*)\]"
IDS = r"s\(([\d. ]*)\)"


class Malformed(Exception):
    """What was expected where something else stands, and why that does not do."""

    def __init__(self, expected: str, reason: str = "") -> None:
        super().__init__(expected)
        self.expected, self.reason = expected, reason


def pattern(text: str) -> re.Pattern[str]:
    """Digits and letters are ASCII's."""
    return re.compile(text, re.ASCII)


def match(form: re.Pattern[str], text: str, expected: str) -> re.Match[str]:
    """The whole of `text` by `form`; Malformed shows an example of it."""
    found = form.fullmatch(text)
    if found is None:
        raise Malformed(f"`{expected}`")
    return found


def word(text: str) -> str:
    """A name as it stands, or as a JSON string where it holds anything out of the ordinary."""
    return text if re.fullmatch(BARE, text) else json.dumps(text)


def meant(text: str | None) -> str:
    """The name that `word` wrote; none is empty."""
    if text is None or not text.startswith('"'):
        return text or ""
    return str(json.loads(text))


def listed(ids: Sequence[int]) -> str:
    """Storages of the program as `s(1 2 5..8)`: three and more that follow each other are a range."""
    pieces: list[str] = []
    i = 0
    while i < len(ids):
        j = i
        while j + 1 < len(ids) and ids[j + 1] == ids[j] + 1:
            j += 1
        if j - i >= 2:
            pieces.append(f"{ids[i]}..{ids[j]}")
            i = j + 1
        else:
            pieces.append(str(ids[i]))
            i += 1
    return f"s({' '.join(pieces)})"


def unlisted(text: str, room: int) -> tuple[int, ...]:
    """What stands inside `s(...)`; `room` bounds what the ranges may unfold to."""
    ids: list[int] = []
    for piece in text.split(" ") if text else ():
        first, dots, last = piece.partition("..")
        low, high = int(first), int(last if dots else first)
        if high < low or len(ids) + high - low >= room:
            raise Malformed("", f"`{piece}` is no range, or longer than the {room} storages there are")
        ids += range(low, high + 1)
    return tuple(ids)


def dtype(text: str) -> str:
    """A known dtype."""
    name = meant(text)
    if name not in BITS:
        raise Malformed(f"a dtype: {', '.join(BITS)}", f"`{name}` is none")
    return name


def phase(text: str) -> str:
    """A known phase."""
    name = meant(text)
    if name not in PHASES:
        raise Malformed(f"a phase: {', '.join(PHASES)}", f"`{name}` is none")
    return name
