"""Text -> Capture; the form is in text.py. Nothing in such a text can run code."""

from __future__ import annotations

import re
from dataclasses import replace

from .errors import TorchperfError
from .graph import Block, Capture, Graph, Segment
from .op import Op
from .tensor import Storage, Value
from .text_arguments import Arguments
from .text_facts import FactsReader
from .text_words import DIMS, HEADER, IDS, WORD, Malformed, dtype, match, meant, pattern, phase, unlisted

_HEADER = pattern(re.escape(HEADER))
_GRAPH = pattern(rf"graph {WORD}")
_BLOCK = pattern(rf"block b(\d+) {WORD}(?: {WORD})?")
_CALL = pattern(rf"call b(\d+)(?: {WORD})? {IDS}")
_STORAGE = pattern(rf"s(\d+): {WORD}, (.+?) bytes(?:, {WORD})?")
_VALUE = pattern(rf"v(\d+): {WORD}{DIMS} strides {DIMS} @s(\d+)(?:\+(.+))?")
_OP = pattern(rf"(?:(v\d+(?:, v\d+)*) = )?{WORD}(\(.*\))(?: in {WORD})?(?: during {WORD})?")
_INSIDE = (
    "s0: activation, 8*seq bytes",
    "v0: bf16[seq, 4] strides [4, 1] @s0",
    "v2 = aten.mm.default(self=v0, mat2=v1) in MODULE",
)


def read(text: str) -> Capture:
    """The capture that `show` wrote.

    A TorchperfError names the first line that cannot be read, and what belongs there.
    """
    reader, number, line = _Reader(), 0, ""
    try:
        for number, line in enumerate(text.split("\n"), 1):
            if number == 1:
                match(_HEADER, line, HEADER)
            elif line.strip(" ") and not line.lstrip(" ").startswith("#"):
                reader.line(line)
        reader.close_graph()
        if not reader.graphs:
            raise Malformed("`graph NAME`")
        return Capture(tuple(reader.graphs))
    except Malformed as malformed:
        facts = [("expected", malformed.expected), ("reason", malformed.reason)]
    except (TorchperfError, ValueError, OverflowError, RecursionError) as error:
        facts = [("reason", str(error).splitlines()[0])]
    shown = line if len(line) <= 100 else line[:97] + "..."
    raise TorchperfError(
        f"line {number} of the graph's text cannot be read",
        facts=[("line", shown), *((label, fact) for label, fact in facts if fact)],
    )


class _Reader:
    """What has been read so far: in each graph facts come first, then blocks, then calls."""

    def __init__(self) -> None:
        self.graphs: list[Graph] = []
        self._facts: FactsReader | None = None
        self._block: _BlockReader | None = None

    def line(self, line: str) -> None:
        body = line.lstrip(" ")
        indent = len(line) - len(body)
        if indent == 0:
            self.close_graph()
            self._facts = FactsReader(meant(match(_GRAPH, body, "graph NAME")[1]))
            self._blocks: list[Block] = []
            self._segments: list[Segment] = []
        elif self._facts is None:
            raise Malformed("`graph NAME`")
        elif indent == 2:
            self._statement(body, self._facts)
        elif self._block is None or indent % 2:
            raise Malformed("two spaces before a fact, a block or a call, four before what a block holds")
        else:
            self._block.line(body, indent // 2 - 2)

    def close_graph(self) -> None:
        self._close_block()
        if self._facts is not None:
            facts = self._facts.facts()
            self.graphs.append(Graph(facts, tuple(self._blocks), tuple(self._segments), self._facts.bound))

    def _close_block(self) -> None:
        if self._block is not None:
            self._blocks.append(self._block.block())
            self._block = None

    def _statement(self, body: str, facts: FactsReader) -> None:
        self._close_block()
        key, _, rest = body.partition(" ")
        if key == "block" and not self._segments:
            found = match(_BLOCK, body, "block b0 forward MODULE")
            _in_order("b", found[1], len(self._blocks))
            self._block = _BlockReader(meant(found[3]), phase(found[2]), facts)
        elif key == "call":
            self._call(match(_CALL, body, "call b0 MODULE s(0 1 4..9)"))
        elif self._blocks or self._segments or not facts.line(key, rest):
            raise Malformed("a fact before the first block, a block before the first call, or a call")

    def _call(self, found: re.Match[str]) -> None:
        block = int(found[1])
        if block >= len(self._blocks):
            raise Malformed("", f"the graph has no block b{block}")
        slots = len(self._blocks[block].storages)
        storages = unlisted(found[3], slots)
        if len(storages) != slots:
            raise Malformed(f"{slots} storages, one for each of b{block}", f"there are {len(storages)}")
        self._segments.append(Segment(block, meant(found[2]), storages))


class _BlockReader:
    """Storages, values and ops of one block, each named only after it was declared."""

    def __init__(self, module: str, phase: str, facts: FactsReader) -> None:
        self._module, self._phase, self._facts = module, phase, facts
        self._storages: list[Storage] = []
        self._values: list[Value] = []
        self._ops: list[tuple[int, Op]] = []

    def block(self) -> Block:
        return Block(self._module, self._phase, tuple(self._storages), _nested(self._ops))

    def line(self, body: str, depth: int) -> None:
        if depth == 0 and (found := _STORAGE.fullmatch(body)):
            self._storage(found)
        elif depth == 0 and (found := _VALUE.fullmatch(body)):
            self._value(found)
        elif found := _OP.fullmatch(body):
            self._op(found, depth)
        else:
            raise Malformed(f"`{_INSIDE['sv'.find(body[0])]}`")

    def _storage(self, found: re.Match[str]) -> None:
        _in_order("s", found[1], len(self._storages))
        name = None if found[4] is None else meant(found[4])
        self._storages.append(Storage(self._facts.dim(found[3]), meant(found[2]), name))

    def _value(self, found: re.Match[str]) -> None:
        _in_order("v", found[1], len(self._values))
        shape, strides, slot = self._facts.shape(found[3]), self._facts.shape(found[4]), int(found[5])
        if len(shape) != len(strides):
            raise Malformed("as many strides as dims", f"{len(strides)} for {len(shape)}")
        if slot >= len(self._storages):
            raise Malformed("", f"the block has no storage s{slot} above this line")
        offset = 0 if found[6] is None else self._facts.dim(found[6])
        self._values.append(Value(slot, dtype(found[2]), shape, strides, offset))

    def _op(self, found: re.Match[str], depth: int) -> None:
        if depth > (self._ops[-1][0] + 1 if self._ops else 0):
            raise Malformed("a part two spaces deeper than its op")
        given = Arguments(found[3], self._values, self._facts.dim)
        outputs = tuple(map(given.known, found[1].split(", "))) if found[1] else ()
        during = self._phase if found[5] is None else phase(found[5])
        op = Op(
            meant(found[2]), during, meant(found[4]), tuple(given.operands), tuple(given.inputs), outputs,
            tuple(given.attrs),
        )  # fmt: skip
        self._ops.append((depth, op))


def _in_order(letter: str, given: str, number: int) -> None:
    if int(given) != number:
        raise Malformed(f"`{letter}{number}`: they are numbered in order")


def _nested(rows: list[tuple[int, Op]]) -> tuple[Op, ...]:
    """Ops with those that follow them deeper as their parts."""
    ops, i = [], 0
    while i < len(rows):
        depth, op = rows[i]
        end = next((j for j in range(i + 1, len(rows)) if rows[j][0] <= depth), len(rows))
        parts = _nested(rows[i + 1 : end])
        ops.append(replace(op, parts=parts) if parts else op)
        i = end
    return tuple(ops)
