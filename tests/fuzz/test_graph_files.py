"""Graph files that were damaged, made up, or written to do harm."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from fuzz_examples import share
from hypothesis import given
from hypothesis import strategies as st

import torchperf
from torchperf.annotate import RULES
from torchperf.graph import codec, expr, text
from torchperf.graph.dtype import BITS
from torchperf.graph.graph import Capture
from torchperf.graph.op import PHASES

Attempt = Callable[[], AbstractContextManager[None]]


CODE = [
    "__import__('os').system('id')",
    "!!python/object/apply:os.system ['id']",
    "cos\nsystem\n(S'id'\ntR.",
    "{{7*7}}",
]
NUMBERS = st.sampled_from([0, -1, 1, 2, 3, 7, 2**31, 2**63, -(2**63), 10**40, 10**400, 0.5, -0.0, 1e308, 1e-320])
EXPRESSIONS = st.sampled_from(
    ["batch", "seq", "batch*seq", "99999999999999999999*seq", "1/3*seq", "2**2**99", "ceil(seq, 0)", "pad(seq, 7)",
     "-5*batch", "excess(batch, 3) + -1", "*".join(["seq"] * 150), "min(seq, 1)", "seq + seq"]
)  # fmt: skip
LEAVES = st.one_of(
    NUMBERS, EXPRESSIONS, st.none(), st.booleans(), st.text(max_size=6), st.sampled_from(CODE),
    st.sampled_from(["bf16", "i64", "param", "grad", "forward", "backward", "aten.mm.default", "aten.add.Tensor"]),
)  # fmt: skip
JUNK = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.sampled_from(["expr", "ratio", "scaled", "float", "x"]), inner, max_size=2),
    ),
    max_leaves=6,
)


WORDS = st.one_of(EXPRESSIONS, st.sampled_from([*RULES, *BITS, *PHASES, "param", "input", "grad", "self", "dim"]))


def places(wire: Any) -> list[tuple[Any, Any]]:
    """Every place of a JSON tree, as the list or object that holds it and its key."""
    found = []
    for key in list(wire) if isinstance(wire, dict) else range(len(wire)):
        found.append((wire, key))
        if isinstance(wire[key], (dict, list)):
            found += places(wire[key])
    return found


def like(value: Any) -> st.SearchStrategy[Any]:
    """Something of the same type, which a check of types lets pass."""
    match value:
        case bool() | None:
            return st.sampled_from([True, False, None])
        case int() | float():
            return st.one_of(st.integers(0, 40), NUMBERS)
        case str():
            return WORDS
        case list():
            return st.sampled_from([value[::-1], value[1:], value[:-1], value + value[-1:], value * 2, []])
        case _:
            return st.sampled_from([{}, dict(list(value.items())[1:])])


def change(draw: st.DrawFn, wire: Any) -> None:
    """One place, at any depth, loses its value, gets another, or trades it with its neighbour."""
    node, key = draw(st.sampled_from(places(wire)))
    match draw(st.integers(0, 9)):
        case 0:
            del node[key]
        case 1 if isinstance(node, list):
            node[key], node[key - 1] = node[key - 1], node[key]
        case 2 | 3:
            node[key] = draw(JUNK)
        case _:
            node[key] = draw(like(node[key]))


def parts(wire: Any) -> list[Any]:
    """The whole, and again what its blocks hold, which is what the rest of the program works on."""
    try:
        return [wire, *(b[key] for b in wire["graphs"][0]["blocks"] for key in ("ops", "values", "storages") if b[key])]
    except (LookupError, TypeError):  # an earlier change has taken these away
        return [wire]


@st.composite
def damaged(draw: st.DrawFn, good: bytes) -> bytes:
    """A graph file with one to three changes, to its tree or to its bytes."""
    if draw(st.integers(0, 9)) == 0:
        data = bytearray(good)
        for _ in range(draw(st.integers(1, 3))):
            data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
        return bytes(data[: draw(st.integers(0, len(data)))]) if draw(st.booleans()) else bytes(data)
    wire = json.loads(good)
    wire["graphs"] = wire["graphs"][:1]
    for _ in range(draw(st.integers(1, 3))):
        change(draw, draw(st.sampled_from(parts(wire))))
    return json.dumps(wire).encode()


@share(80)
@given(st.data())
def test_damaged_files(saved: bytes, attempt: Attempt, data: st.DataObject) -> None:
    """Read, bound, printed, inspected, estimated: whatever of it is refused is refused with a message."""
    file = data.draw(damaged(saved))
    batch = data.draw(st.sampled_from([1, 2, 8, 2**40]))
    with attempt():
        capture, _ = codec.decode(file, "saved.json")
        str(capture)
        codec.encode(capture)
        torchperf.inspect(capture, micro_batch=batch)
        torchperf.estimate(capture, gpu="h100-sxm-80gb", micro_batch=batch, runtime="compile")


@share(25)
@given(st.one_of(EXPRESSIONS, st.text("batchseq0123456789*+/-(), ceilpadminexcess", max_size=60), st.text(max_size=40)))
def test_expressions(attempt: Attempt, written: str) -> None:
    """A size in a file is read by a grammar: no power, no nesting, no name that is not a size."""
    with attempt():
        dim = expr.parse(written)
        assert str(expr.parse(str(dim))) == str(dim)
        names = {name for term in dim.terms for _, name, _ in term.factors} if isinstance(dim, expr.Expr) else ()
        expr.bind_dim(dim, dict.fromkeys(names, 3))


@share(25)
@given(st.data())
def test_texts(one_layer: Callable[[], Capture], attempt: Attempt, data: st.DataObject) -> None:
    """The text form of a graph, with lines dropped, doubled, moved, or cut and mended with something else."""
    lines = text.show(one_layer()).split("\n")
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(lines) - 1))
        cut = data.draw(st.integers(0, len(lines[at])))
        junk = data.draw(st.one_of(EXPRESSIONS, st.sampled_from(CODE), st.text(max_size=5), NUMBERS.map(str)))
        match data.draw(st.sampled_from(["drop", "double", "cut", "mend"])):
            case "drop":
                lines[at : at + 1] = [""]
            case "double":
                lines.insert(data.draw(st.integers(0, len(lines))), lines[at])
            case "cut":
                lines[at] = lines[at][:cut]
            case _:
                lines[at] = lines[at][:cut] + junk + lines[at][cut + len(junk) :]
    with attempt():
        text.read("\n".join(lines)).bind(batch=2)
