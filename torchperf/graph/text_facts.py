"""The lines of a graph's text that stand before its blocks -> Facts."""

from __future__ import annotations

import re
from typing import Any

from .cache import CacheEntry
from .errors import TorchperfError
from .expr import Dim, Expr, parse
from .graph import Facts, Input, Parameter
from .text_arguments import Arguments
from .text_words import DIMS, IDS, INT, WORD, Malformed, dtype, match, meant, pattern, unlisted

_NAMED = (
    pattern(rf"((?:{WORD}(?:, {WORD})*)?): {WORD}{DIMS}(?: @s(\d+))?( trainable)?"),
    "NAME: bf16[2, 3] @s0 trainable",
)
_LINES = {
    "class": (pattern(WORD), "NAME"),
    "mode": (pattern(WORD), "train"),
    "size": (pattern(rf"{WORD} = {INT}"), "NAME = 1"),
    "range": (pattern(rf"{WORD} {INT}\.\.{INT}?(?: step {INT})?"), "NAME 2..4096 step 256"),
    "limit": (pattern(rf"{WORD} = {INT}"), "NAME = 4096"),
    "fixed": (pattern(r'(".*")'), '"reason"'),
    "unattributed": (pattern(r"(\d+)"), "1"),
    "guess": (pattern(r'(".*")'), '"text"'),
    "assumption": (pattern(r'(".*")'), '"text"'),
    "version": (pattern(rf'{WORD} = (".*")'), 'NAME = "1.0"'),
    "tp_plan": (pattern(rf'{WORD} = (".*")'), 'NAME = "colwise"'),
    "cache": (
        pattern(rf"{WORD}: (kv|latent|cross|state) {WORD}, (\d+) elements, (\d+) heads(?: window (\d+))? in {IDS}"),
        "NAME: kv bf16, 2048 elements, 8 heads window 1024 in s(0..31)",
    ),
    "config": (pattern(rf"{WORD} = (.+)"), "NAME = VALUE"),
    "input": (pattern(rf"{WORD}: {WORD}{DIMS}"), "NAME: i64[batch, seq]"),
    "parameter": _NAMED,
    "buffer": _NAMED,
    "outputs": (pattern(IDS), "s(1 2 5..8)"),
    "bound": (pattern(rf"((?:{WORD}={INT}(?: {WORD}={INT})*)?)"), "batch=1 seq=4096"),
}
_WORD = pattern(WORD)
_PAIR = pattern(rf"{WORD}={INT}")
_MANY = {
    "size": "sizes", "range": "ranges", "limit": "limits", "guess": "guesses", "assumption": "assumptions",
    "version": "versions", "tp_plan": "tp_plan", "cache": "cache", "config": "config", "input": "inputs",
    "parameter": "parameters", "buffer": "buffers",
}  # fmt: skip
MAX_OUTPUTS = 1 << 20


class FactsReader:
    """The facts of one graph as they are read, and the size expressions that its ranges allow."""

    def __init__(self, model: str) -> None:
        self.bound: tuple[tuple[str, int], ...] | None = None
        self._fields: dict[str, Any] = {"model": model}
        self._lists: dict[str, list[Any]] = {field: [] for field in _MANY.values()}
        self._dims: dict[str, Dim] = {}

    def line(self, key: str, rest: str) -> bool:
        """Read one line; False where it is none of facts."""
        if key not in _LINES:
            return False
        form, example = _LINES[key]
        found = match(form, rest, f"{key} {example}")
        if key in _MANY:
            self._lists[_MANY[key]].append(self._item(key, found))
            return True
        if key == "bound":
            again = self.bound is not None
            self.bound = tuple((meant(name), int(size)) for name, size in _PAIR.findall(found[1]))
        else:
            field = "model_class" if key == "class" else key
            again = field in self._fields
            self._fields[field] = self._single(key, found[1])
        if again:
            raise Malformed("", f"a second `{key}` in one graph")
        return True

    def facts(self) -> Facts:
        """All of them, once the graph ends."""
        for field, line in (("model_class", "class NAME"), ("mode", "mode train")):
            if field not in self._fields:
                raise Malformed(f"`{line}` in the graph that ends here")
        lists: dict[str, Any] = {field: tuple(items) for field, items in self._lists.items()}
        return Facts(**self._fields, **lists)

    def shape(self, text: str) -> tuple[Dim, ...]:
        """What stands inside `[batch, 8*seq, 4096]`."""
        return tuple(map(self.dim, re.split(r", (?!\d+\))", text))) if text else ()

    def dim(self, text: str) -> Dim:
        """A size expression of the graph's own sizes."""
        known = self._dims.get(text)
        if known is None:
            try:
                known = parse(text)
            except TorchperfError as error:
                raise Malformed("a size expression", error.message) from None
            if isinstance(known, Expr):
                ranges = {name for name, *_ in self._lists["ranges"]}
                used = {name for term in known.terms for _, name, _ in term.factors}
                if not used <= ranges:
                    unknown = ", ".join(f"`{name}`" for name in sorted(used - ranges))
                    raise Malformed("", f"the graph has no `range` of {unknown}")
            self._dims[text] = known
        return known

    def _single(self, key: str, text: str) -> int | str | tuple[int, ...]:
        if key == "unattributed":
            return int(text)
        return unlisted(text, MAX_OUTPUTS) if key == "outputs" else meant(text)

    def _item(self, key: str, found: re.Match[str]) -> Any:
        if key in ("parameter", "buffer"):
            names = tuple(meant(name) for name in _WORD.findall(found[1]))
            shape = tuple(map(int, found[5].split(", "))) if found[5] else ()
            return Parameter(names, shape, dtype(found[4]), bool(found[7]), int(found[6] or -1))
        first = meant(found[1])
        if key in ("size", "limit"):
            return first, int(found[2])
        if key == "range":
            return first, int(found[2]), int(found[3] or -1), int(found[4] or 0)
        if key in ("guess", "assumption"):
            return first
        if key in ("version", "tp_plan"):
            return first, meant(found[2])
        if key == "cache":
            layers = unlisted(found[7], MAX_OUTPUTS)
            numbers = (int(found[5]), int(found[4]), int(found[6] or 0))
            return CacheEntry(first, layers, found[2], *numbers, dtype(found[3]))
        if key == "config":
            return first, self._scalar(found[2])
        return Input(first, self.shape(found[3]), dtype(found[2]))

    def _scalar(self, text: str) -> int | float | str | bool:
        given = Arguments(f"(value={text})", [], self.dim)
        value = given.attrs[0][1] if len(given.attrs) == 1 else None
        if not isinstance(value, (bool, int, float, str)):
            raise Malformed("a number, a JSON string, True or False")
        return value
