"""The arguments of an op in a graph's text: `(self=v3, mat2=v5, dims=[0, 2*seq], eps=1e-05, how="sum")`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence

from .expr import Dim, Expr, Ratio, Scaled
from .op import Attr
from .tensor import Value
from .text_words import WORD, Malformed, meant

_NAME = re.compile(rf"{WORD}=", re.ASCII)
_VALUE = re.compile(r"v\d+(?!\w)", re.ASCII)
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_WORD = re.compile(r"(None|True|False)(?!\w)")
_FLOAT = re.compile(r"-?(?:\d+\.\d+(?:e[+-]?\d+)?|\d+e[+-]?\d+|inf(?!\w)|nan(?!\w))", re.ASCII)
_TERM = r"(?:(?:ceil|pad|min|excess)\(\w+, \d+\)|[\w/*-])+"
_EXPR = re.compile(rf"{_TERM}(?: \+ {_TERM})*", re.ASCII)
_OF_SIZES = re.compile(r" ([/*]) \(")
_WORDS = {"None": None, "True": True, "False": False}


class Arguments:
    """Operands and attributes of one op. Raises Malformed, and ValueError from a literal out of range."""

    def __init__(self, text: str, values: Sequence[Value], dim: Callable[[str], Dim]) -> None:
        self.operands: list[str] = []
        self.inputs: list[Value] = []
        self.attrs: list[tuple[str, Attr]] = []
        self._text, self._values, self._dim, self._at = text, values, dim, 1
        if not self._taken(")"):
            self._argument()
            while not self._taken(")"):
                self._need(", ")
                self._argument()
        if self._at != len(text):
            raise Malformed("nothing after `)` but ` in MODULE` and ` during PHASE`")

    def known(self, name: str) -> Value:
        """The value `v7` of the block."""
        number = int(name[1:])
        if number >= len(self._values):
            raise Malformed("", f"the block has no value {name} above this line")
        return self._values[number]

    def _argument(self) -> None:
        found = self._token(_NAME)
        if found is None:
            raise self._expected("name=")
        name = meant(found[1])
        if self._text.startswith("[v", self._at) and _VALUE.match(self._text, self._at + 1):
            self._need("[")
            self._operand(name)
            while not self._taken("]"):
                self._need(", ")
                self._operand(name)
        elif _VALUE.match(self._text, self._at):
            self._operand(name)
        else:
            self.attrs.append((name, self._attr()))

    def _operand(self, name: str) -> None:
        found = self._token(_VALUE)
        if found is None:
            raise self._expected("v0")
        self.operands.append(name)
        self.inputs.append(self.known(found[0]))

    def _attr(self) -> Attr:
        if self._taken("["):
            items: list[Attr] = []
            while not self._taken("]"):
                if items:
                    self._need(", ")
                items.append(self._attr())
            return tuple(items)
        if found := self._token(_STRING):
            return str(json.loads(found[0]))
        if found := self._token(_WORD):
            return _WORDS[found[0]]
        if found := self._token(_FLOAT):
            return self._scaled(float(found[0]))
        if self._taken("("):  # a size whose name would read as something else
            dim = self._expression()
            self._need(")")
            return dim
        if _VALUE.match(self._text, self._at):
            raise Malformed("an argument that is either values or none of them")
        return self._expression()

    def _scaled(self, number: float) -> float | Ratio | Scaled:
        found = self._token(_OF_SIZES)
        if found is None:
            return number
        dim = self._expression()
        self._need(")")
        if not isinstance(dim, Expr):
            raise Malformed("an expression of the sizes", f"`{dim}` is a constant")
        return Ratio(number, dim) if found[1] == "/" else Scaled(number, dim)

    def _expression(self) -> Dim:
        found = self._token(_EXPR)
        if found is None:
            raise self._expected("a literal, a size expression or a value")
        return self._dim(found[0])

    def _token(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        found = pattern.match(self._text, self._at)
        if found:
            self._at = found.end()
        return found

    def _taken(self, text: str) -> bool:
        here = self._text.startswith(text, self._at)
        self._at += len(text) if here else 0
        return here

    def _need(self, text: str) -> None:
        if not self._taken(text):
            raise self._expected(f"`{text}`")

    def _expected(self, what: str) -> Malformed:
        rest = self._text[self._at :]
        return Malformed(what, f"at `{rest[:40]}`" if rest else "the line ends early")
