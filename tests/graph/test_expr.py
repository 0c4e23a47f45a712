"""Size expressions: text and back, their values, and what is refused."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from torchperf.graph.errors import TorchperfError
from torchperf.graph.expr import Expr, Factor, Ratio, Scaled, Term, bind_dim, parse

NAMES = ("batch", "seq", "kv")
sizes = st.fixed_dictionaries({name: st.integers(1, 1 << 20) for name in NAMES})
factors: st.SearchStrategy[Factor] = st.one_of(
    st.tuples(st.just(""), st.sampled_from(NAMES), st.just(0)),
    st.tuples(st.sampled_from(["ceil", "pad", "min", "excess"]), st.sampled_from(NAMES), st.integers(1, 4096)),
)
terms = st.builds(
    Term, st.integers(-(1 << 70), 1 << 70), st.integers(1, 64), st.lists(factors, min_size=1, max_size=4).map(tuple)
)
constants = st.builds(Term, st.integers(-(1 << 70), 1 << 70), st.just(1), st.just(()))
expressions = st.builds(
    lambda first, rest: Expr((first, *rest)), terms, st.lists(st.one_of(terms, constants), max_size=3)
)


@given(expressions)
@example(Expr((Term(1, 2, (("", "seq", 0),)), Term(1, 1, ()))))
@example(Expr((Term(-1, 1, (("ceil", "seq", 32), ("", "batch", 0))),)))
def test_what_str_writes_parse_reads(expression: Expr) -> None:
    assert parse(str(expression)) == expression


@given(st.integers(-(1 << 80), 1 << 80))
def test_a_constant_stays_an_int(number: int) -> None:
    assert parse(str(number)) == number
    assert bind_dim(parse(str(number)), {}) == number


@given(expressions, sizes)
def test_a_sum_is_the_sum_of_its_terms_or_not_whole(expression: Expr, at: dict[str, int]) -> None:
    plain: dict[str, Callable[[int, int], int]] = {
        "": lambda s, _: s,
        "ceil": lambda s, q: (s + q - 1) // q,
        "pad": lambda s, q: (s + q - 1) // q * q - s,
        "min": min,
        "excess": lambda s, w: s - w if s > w else 0,
    }
    total, whole = 0, True
    for term in expression.terms:
        product = term.coefficient
        for function, name, constant in term.factors:
            product *= plain[function](at[name], constant)
        whole &= product % term.divisor == 0
        total += product // term.divisor
    if whole and abs(total) < 2**63:
        assert expression(at) == total
    elif whole:
        with pytest.raises(TorchperfError, match="is more than"):
            expression(at)
    else:
        with pytest.raises(TorchperfError, match="is not whole"):
            expression(at)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("8*batch*seq + 255*seq", 8 * 3 * 100 + 255 * 100),
        ("ceil(seq, 32)*batch", 4 * 3),
        ("pad(seq, 32)", 28),
        ("min(seq, 64)", 64),
        ("excess(seq, 64)*seq", 3600),
        ("1/2*seq", 50),
        ("-3/4*seq + 7", -68),
    ],
)
def test_values(text: str, value: int) -> None:
    assert bind_dim(parse(text), {"batch": 3, "seq": 100}) == value


@pytest.mark.parametrize(
    "text",
    ["", " ", "seq +", "+ seq", "seq*2", "2*3", "seq - 1", "2**seq", "seq/2", "floor(seq, 2)", "ceil(seq)",
     "ceil(seq,2)", "min(seq, -1)", "ceil(seq, 0)", "pad(seq, 0)", "1/0*seq", "seq.batch", "(seq)", "1.5*seq",
     "__import__('os')"],
)  # fmt: skip
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(TorchperfError, match=r"not a size expression|divides by zero"):
        parse(text)


@given(st.text(alphabet="batchseq*+/-() ,0123456789.", max_size=30))
def test_parse_raises_nothing_but_its_own_error(text: str) -> None:
    with contextlib.suppress(TorchperfError):
        parse(text)


def test_floats_that_follow_the_sizes() -> None:
    seq = parse("seq")
    assert isinstance(seq, Expr)
    assert Ratio(2.0, seq)({"seq": 8}) == 0.25
    assert Scaled(0.5, seq)({"seq": 8}) == 4.0
    assert (str(Ratio(2.0, seq)), str(Scaled(0.5, seq))) == ("2.0 / (seq)", "0.5 * (seq)")
