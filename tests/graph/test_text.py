"""A graph's text reads back, shows what it should, and says which line is wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from torchperf.graph.errors import TorchperfError
from torchperf.graph.expr import Expr, Ratio, Scaled, Term, parse
from torchperf.graph.graph import Block, Capture, Facts, Graph, Input, Parameter, Segment
from torchperf.graph.op import Op
from torchperf.graph.tensor import Storage, Value
from torchperf.graph.text import read, show

MARKS = '[]()"=,.:@+*/- \n#sv09e'
SEQ = Expr((Term(1, 1, (("", "seq", 0),)),))
TEXT = """\
torchperf graph 1

graph tiny
  class Tiny
  mode forward
  size seq = 8
  range seq 2..4096 step -256
  limit seq = 4096
  unattributed 2
  guess "`mask.all()` taken as true"
  config eps = 1e-05
  input x: fp32[seq, 4]
  parameter fc.weight, head.weight: fp32[4, 4] @s1 trainable
  buffer steps: i64[]
  outputs s(2..4 7)
  block b0 forward layers.*
    s0: input, 16*seq bytes, x
    s1: param, 64 bytes, "the weight"
    s2: activation, 16*seq + 4 bytes
    v0: fp32[seq, 4] strides [4, 1] @s0
    v1: fp32[4, 4] strides [1, 4] @s1
    v2: fp32[seq, ceil(seq, 32)] strides [4, 1] @s2+1
    # a remark
    v2 = aten.mm.default(self=v0, mat2=v1) in layers.*.fc
    v2 = aten.cat.default(tensors=[v2, v2], dim=-1, sizes=[seq, 4, [None, True]]) during backward
    aten.x.default(a=inf, b="s\\n", c=0.5 / (seq), d=2.0 * (2*seq + 1)) in "odd, path"
      v2 = aten.part.default(self=v2)
  call b0 layers.0 s(0 1 2)
  call b0 layers.1 s(0..2)
"""


def test_round_trip(capture: Capture) -> None:
    assert read(show(capture)) == capture


def test_str_of_a_capture_is_its_text(small: Capture) -> None:
    assert str(small) == show(small)


def test_a_bound_graph_reads_back(stack: Capture) -> None:
    bound = Capture((stack.bind(seq=64),))
    assert read(show(bound)) == bound


def test_the_form() -> None:
    capture = read(TEXT)
    canonical = TEXT.replace("    # a remark\n", "").replace("s(0 1 2)", "s(0..2)")
    assert show(capture) == canonical
    graph = capture.graphs[0]
    assert graph.facts.ranges == (("seq", 2, 4096, -256),)
    assert graph.facts.outputs == (2, 3, 4, 7)
    assert graph.facts.config == (("eps", 1e-05),)
    assert graph.facts.parameters[0] == Parameter(("fc.weight", "head.weight"), (4, 4), "fp32", True, 1)
    assert graph.facts.buffers[0] == Parameter(("steps",), (), "i64", False, -1)
    mm, cat, last = graph.blocks[0].ops
    assert (mm.module, mm.phase, mm.operands) == ("layers.*.fc", "forward", ("self", "mat2"))
    assert (cat.module, cat.phase, cat.operands) == ("", "backward", ("tensors", "tensors"))
    assert cat.attrs == (("dim", -1), ("sizes", (SEQ, 4, (None, True))))
    assert last.attr("c") == Ratio(0.5, SEQ)
    assert last.attr("d") == Scaled(2.0, Expr((Term(2, 1, (("", "seq", 0),)), Term(1, 1, ()))))
    assert (last.outputs, last.module, len(last.parts)) == ((), "odd, path", 1)


names = st.one_of(st.text(max_size=12), st.sampled_from(["", "v1", "in", "a) in b", '"', "trainable", "a: b", "#"]))
sizes = st.sampled_from(["seq", "v3", "inf", "nan", "None", "True", "e5"])
expressions = st.builds(
    lambda name, c, rest: Expr((Term(c, 1, (("", name, 0),)), *rest)),
    sizes, st.integers(1, 3), st.sampled_from([(), (Term(-2, 1, ()),), (Term(1, 3, (("ceil", "seq", 32),)),)]),
)  # fmt: skip
dims = st.one_of(st.integers(0, 1 << 40), expressions)
attrs = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=8), expressions,
        st.builds(Ratio, st.floats(allow_nan=False), expressions),
        st.builds(Scaled, st.floats(allow_nan=False), expressions),
    ),
    lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=5,
)  # fmt: skip


@st.composite
def captures(draw: st.DrawFn) -> Capture:
    storages = draw(st.lists(st.builds(Storage, dims, names, st.none() | names), min_size=1, max_size=4))

    def value() -> Value:
        shape = draw(st.lists(dims, max_size=3))
        strides = draw(st.lists(dims, min_size=len(shape), max_size=len(shape)))
        return Value(draw(st.integers(0, len(storages) - 1)), "bf16", tuple(shape), tuple(strides), draw(dims))

    values = [value() for _ in range(draw(st.integers(1, 4)))]

    def op(depth: int) -> Op:
        inputs = draw(st.lists(st.tuples(names, st.sampled_from(values)), max_size=4))
        given = draw(st.lists(st.tuples(names, attrs), max_size=3))
        outputs = draw(st.lists(st.sampled_from(values), max_size=2))
        parts = tuple(op(depth + 1) for _ in range(draw(st.integers(0, 2 - depth))))
        return Op(
            draw(names), draw(st.sampled_from(["forward", "backward"])), draw(names), tuple(n for n, _ in inputs),
            tuple(v for _, v in inputs), tuple(outputs), tuple(given), parts,
        )  # fmt: skip

    block = Block(draw(names), "forward", tuple(storages), tuple(op(0) for _ in range(draw(st.integers(0, 3)))))
    ids = st.lists(st.integers(0, 9), min_size=len(storages), max_size=len(storages)).map(tuple)
    shapes = st.lists(dims, max_size=3).map(tuple)
    numels = st.lists(st.integers(0, 1 << 40), max_size=3).map(tuple)
    described = st.builds(
        Parameter, st.lists(names, max_size=3).map(tuple), numels, st.just("fp32"), st.booleans(), st.integers(-1, 99)
    )
    texts = st.lists(st.text(max_size=12), max_size=2).map(tuple)
    scalars = st.one_of(st.integers(), st.floats(allow_nan=False), st.booleans(), st.text(max_size=8))
    facts = Facts(
        draw(names), draw(names), draw(names), draw(st.lists(described, max_size=2).map(tuple)),
        draw(st.lists(described, max_size=2).map(tuple)),
        draw(st.lists(st.builds(Input, names, shapes, st.just("i64")), max_size=2).map(tuple)),
        tuple((draw(names), draw(st.integers())) for _ in range(2)),
        (*((name, 2, -1, 0) for name in ("seq", "v3", "inf", "nan", "None", "True", "e5")), (draw(names), 5, 9, -3)),
        ((draw(names), 3),), draw(st.text(max_size=12)), draw(ids), draw(texts), draw(texts), draw(st.integers(0, 3)),
        tuple((draw(names), draw(scalars)) for _ in range(2)), ((draw(names), draw(st.text(max_size=8))),),
    )  # fmt: skip
    bound = draw(st.none() | st.lists(st.tuples(names, st.integers())).map(tuple))
    calls = tuple(Segment(0, draw(names), draw(ids)) for _ in range(draw(st.integers(0, 2))))
    return Capture((Graph(facts, (block,), calls, bound),))


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(captures())
def test_any_capture_reads_back(capture: Capture) -> None:
    assert read(show(capture)) == capture


@pytest.mark.parametrize(
    ("old", "new", "line", "expected"),
    [
        ("torchperf graph 1", "torchperf graph 2", 1, "torchperf graph 1"),
        ("graph tiny", "graph", 3, "graph NAME"),
        ("  mode forward\n", "  mode forward\n  mode train\n", 6, "a second `mode`"),
        ("step -256", "step x", 7, "range NAME 2..4096 step 256"),
        ("eps = 1e-05", "eps = [1]", 11, "a number, a JSON string, True or False"),
        ("eps = 1e-05", "eps = 1, b = 2", 11, "name="),
        ("x: fp32[seq", "x: fp31[seq", 12, "`fp31` is none"),
        ("x: fp32[seq", "x: fp32[sea", 12, "no `range` of `sea`"),
        ("2..4 7", "2..9999999", 15, "longer than"),
        ("b0 forward", "b1 forward", 16, "`b0`: they are numbered in order"),
        ("b0 forward", "b0 sideways", 16, "`sideways` is none"),
        ("    s1", "   s1", 18, "four before what a block holds"),
        ("64 bytes", "64", 18, "s0: activation, 8*seq bytes"),
        ("16*seq + 4 bytes", "eval(1) bytes", 19, "a size expression"),
        ("strides [1, 4] @s1", "strides [4] @s1", 21, "as many strides as dims"),
        ("@s2+1", "@s3", 22, "no storage s3"),
        ("@s2+1", "@s2+", 22, "v0: bf16[seq, 4]"),
        ("mat2=v1", "mat2=v9", 24, "no value v9"),
        ("mat2=v1", "mat2", 24, "name="),
        ("mat2=v1)", "mat2=v1", 24, "v2 = aten.mm.default"),
        ("in layers.*.fc", "at layers.*.fc", 24, "v2 = aten.mm.default"),
        ("[v2, v2]", "[v2, 3]", 25, "v0"),
        ("[None, True]", "[None, v2]", 25, "either values or none"),
        ("[None, True]", "[" * 5000, 25, "recursion"),
        ("0.5 / (seq)", "0.5 / (4)", 26, "an expression of the sizes"),
        ("      v2 = aten.part", "        v2 = aten.part", 27, "a part two spaces deeper"),
        ("call b0 layers.0", "call b1 layers.0", 28, "no block b1"),
        ("s(0 1 2)", "s(0 1)", 28, "3 storages"),
        ("s(0 1 2)", "s(0 2..1)", 28, "is no range"),
        ("s(0 1 2)", "s(0 1  2)", 28, "reason"),
        ("s(0 1 2)", f"s(0 1 {'9' * 5000})", 28, "reason"),
        ("  call b0 layers.1", "  limit seq = 4\n  call b0 layers.1", 29, "a fact before the first block"),
        ("  class Tiny\n", "", 29, "class NAME"),
    ],
)
def test_the_message_names_the_line(old: str, new: str, line: int, expected: str) -> None:
    assert old in TEXT
    with pytest.raises(TorchperfError, match=f"^line {line} of the graph's text cannot be read") as caught:
        read(TEXT.replace(old, new, 1))
    assert expected in str(caught.value)
    assert len(max(str(caught.value).splitlines(), key=len)) < 300


@pytest.mark.parametrize("text", ["", "\n", "torchperf graph 1", "torchperf graph 1\n\n"])
def test_no_graph_at_all(text: str) -> None:
    with pytest.raises(TorchperfError, match="expected"):
        read(text)


def _accepted_or_refused(text: str) -> None:
    try:
        capture = read(text)
    except TorchperfError:
        return
    again = read(show(capture))
    assert show(again) == show(capture)  # text: not-a-number is never equal


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_mutated_text(data: st.DataObject) -> None:
    """Characters and whole lines changed, dropped, doubled: refused in one message, or read as something that shows."""
    text = TEXT
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text)))
        end = min(len(text), at + data.draw(st.integers(0, 5)))
        piece = data.draw(st.one_of(st.text(max_size=5), st.text(alphabet=MARKS, max_size=1)))
        text = text[:at] + piece + text[end:]
    lines = text.split("\n")
    if data.draw(st.booleans()):
        i, j = data.draw(st.integers(0, len(lines) - 1)), data.draw(st.integers(0, len(lines) - 1))
        lines[i], lines[j] = lines[j], lines[i]
    _accepted_or_refused("\n".join(lines))


@pytest.fixture(scope="module")
def lines(small: Capture) -> list[str]:
    return show(replace(small, graphs=small.graphs[:1])).split("\n")


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_mutated_text_of_a_model(lines: list[str], data: st.DataObject) -> None:
    changed = list(lines)
    i = data.draw(st.integers(0, len(lines) - 1))
    at, cut = data.draw(st.integers(0, len(lines[i]))), data.draw(st.integers(0, 3))
    changed[i] = lines[i][:at] + data.draw(st.text(alphabet=MARKS, max_size=3)) + lines[i][at + cut :]
    _accepted_or_refused("\n".join(changed))


def test_a_whole_number_of_many_digits_stays_one() -> None:
    """The cap on the length of an expression must not turn a long integer into a sum of one term."""
    assert parse("1" + "0" * 30) == 10**30
    assert isinstance(parse("-" + "9" * 900), int)
