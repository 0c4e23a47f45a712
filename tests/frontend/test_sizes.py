"""From numbers seen at several sizes to the simplest expression that gives them all."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchperf.frontend.regime import points, ranges
from torchperf.frontend.sizes import Fitter
from torchperf.graph.expr import Expr, Ratio, Scaled, bind_dim, parse

POINTS = points(ranges({"batch": 2, "seq": 64}, {}, ()))
SEQ_ONLY = points(ranges({"seq": 64}, {}, ()))
CONSTANTS = (16, 32, 256)


@pytest.fixture(scope="module")
def fitter() -> Fitter:
    return Fitter(POINTS[:-1], CONSTANTS)


def at_points(text: str) -> tuple[int, ...]:
    return tuple(bind_dim(parse(text), point) for point in POINTS[:-1])


@pytest.mark.parametrize(
    "text",
    [
        "4096", "0", "-1",
        "seq", "batch", "batch*seq", "8*batch*seq", "seq*seq", "batch*seq*seq", "-1*seq",
        "1*seq + -1", "seq + 1", "2*batch + 3",
        "8*batch*seq + 255*seq", "4*seq*seq + -4*seq", "2*batch + 3*seq", "12*batch*seq + 16",
        "batch*seq*seq + 3*batch*seq + 7", "2*batch*seq + 5*seq + 1",
        "ceil(seq, 32)", "64*ceil(seq, 16)", "batch*ceil(seq, 32)", "batch*ceil(seq, 32)*seq", "pad(seq, 16)",
        "min(seq, 256)", "4*batch*min(seq, 256)", "min(seq, 256)*min(seq, 256)", "ceil(seq, 32) + 1",
    ],
)  # fmt: skip
def test_known_forms_come_back(fitter: Fitter, text: str) -> None:
    found = fitter.fit(at_points(text))
    assert isinstance(found, (int, Expr)), found
    assert tuple(bind_dim(found, point) for point in POINTS) == tuple(bind_dim(parse(text), point) for point in POINTS)


@pytest.mark.parametrize("text", ["1/2*seq", "3/4*seq", "1/2*batch*seq"])
def test_a_part_of_a_size_where_it_is_whole(text: str) -> None:
    even = [{"batch": b, "seq": s} for b, s in ((3, 8), (2, 20), (5, 44), (7, 12), (4, 100))]
    values = tuple(bind_dim(parse(text), point) for point in even)
    assert Fitter(even).fit(values) == parse(text)


def test_a_constant_is_a_plain_int(fitter: Fitter) -> None:
    found = fitter.fit((96,) * 5)
    assert (found, type(found)) == (96, int)


def test_the_simplest_wins(fitter: Fitter) -> None:
    assert fitter.fit(at_points("6*batch*seq")) == parse("6*batch*seq")
    assert fitter.fit(at_points("5*batch*seq + 9")) == parse("5*batch*seq + 9")


@given(
    st.lists(
        st.sampled_from(["batch", "seq", "batch*seq", "seq*seq", "batch*seq*seq"]), min_size=1, max_size=2, unique=True
    ),
    st.lists(st.integers(1, 1 << 20), min_size=2, max_size=2),
)
def test_any_sum_of_two_comes_back(products: list[str], coefficients: list[int]) -> None:
    """Also at sizes that the fit never saw."""
    wanted = parse(" + ".join(f"{c}*{p}" for c, p in zip(coefficients, products, strict=False)))
    found = Fitter(POINTS[:-1], CONSTANTS).fit(tuple(bind_dim(wanted, point) for point in POINTS[:-1]))
    for sizes in (*POINTS, {"batch": 13, "seq": 8192}, {"batch": 64, "seq": 4096}):
        assert isinstance(found, (int, Expr))
        assert bind_dim(found, sizes) == bind_dim(wanted, sizes)


@given(st.lists(st.integers(-(1 << 40), 1 << 40), min_size=5, max_size=5).map(tuple))
def test_whatever_is_found_meets_every_value(values: tuple[int, ...]) -> None:
    found = Fitter(POINTS[:-1]).fit(values)
    if found is not None:
        assert isinstance(found, (int, Expr))
        assert tuple(bind_dim(found, point) for point in POINTS[:-1]) == values


@pytest.mark.parametrize(
    "values", [(1, 2, 4, 8, 17), (2, 3, 5, 7, 12), (0, 0, 0, 0, 1), tuple(p["seq"].bit_length() for p in POINTS[:-1])]
)
def test_nothing_fits(fitter: Fitter, values: tuple[int, ...]) -> None:
    assert fitter.fit(values) is None


def test_powers_beyond_the_grammar_do_not_fit(fitter: Fitter) -> None:
    assert fitter.fit(tuple(p["batch"] ** 2 for p in POINTS[:-1])) is None
    assert Fitter(POINTS[:-1]).fit(tuple(p["seq"] ** 3 for p in POINTS[:-1])) is None


@pytest.mark.parametrize("size", [200, 257, 512])
def test_what_lies_beyond_a_chunk(size: int) -> None:
    """On each side of a break the points see one side of `min` and `excess`, and mean the same there."""
    found = points(ranges({"batch": 2, "seq": size}, {}, (256,)))
    fitter = Fitter(found[:-1], (256, 16, 32))
    for text in ("excess(seq, 256)", "batch*min(seq, 256)", "256*batch*ceil(seq, 256)"):
        fitted = fitter.fit(tuple(bind_dim(parse(text), point) for point in found[:-1]))
        assert isinstance(fitted, (int, Expr))
        for point in ({"batch": 7, "seq": size}, found[-1]):
            assert bind_dim(fitted, point) == bind_dim(parse(text), point), (text, str(fitted))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (lambda b, s: 1 / s, "1.0 / (seq)"),
        (lambda b, s: 3.5 / (b * s), "3.5 / (batch*seq)"),
        (lambda b, s: 1 / (s - 1), "1.0 / (seq + -1)"),
        (lambda b, s: 2.0 / (b * s + 1), "2.0 / (batch*seq + 1)"),
        (lambda b, s: float(s), "1.0 * (seq)"),
        (lambda b, s: float(8 * b * s), "1.0 * (8*batch*seq)"),
        (lambda b, s: float(s - 1), "1.0 * (seq + -1)"),
    ],
)  # fmt: skip
def test_floats(fitter: Fitter, value, text: str) -> None:  # type: ignore[no-untyped-def]
    found = fitter.fit(tuple(value(p["batch"], p["seq"]) for p in POINTS[:-1]))
    assert isinstance(found, (Ratio, Scaled))
    assert found(POINTS[-1]) == pytest.approx(value(POINTS[-1]["batch"], POINTS[-1]["seq"]), rel=1e-9)
    assert str(found).rpartition(" ")[2] == text.rpartition(" ")[2]
    assert type(found) is (Ratio if " / " in text else Scaled)


@pytest.mark.parametrize("value", [0.125, 0.0, -1.0, float("inf"), float("-inf")])
def test_a_constant_float(fitter: Fitter, value: float) -> None:
    found = fitter.fit((value,) * 5)
    assert (found, type(found)) == (value, float)


def test_not_a_number_is_a_constant_too(fitter: Fitter) -> None:
    found = fitter.fit(tuple(float("nan") for _ in range(5)))
    assert isinstance(found, float)
    assert found != found


def test_a_float_that_nothing_fits(fitter: Fitter) -> None:
    assert fitter.fit((0.1, 0.7, 0.2, 0.9, 0.55)) is None


def test_an_int_and_a_float_of_one_value_stay_apart(fitter: Fitter) -> None:
    assert type(fitter.fit((1,) * 5)) is int
    assert type(fitter.fit((1.0,) * 5)) is float


def test_proportional_points_would_deceive() -> None:
    """Why the points are what they are: at seq = 64 batch, each stands for the other."""
    bad = [{"batch": b, "seq": 64 * b} for b in (1, 2, 3, 5)]
    assert Fitter(bad).fit(tuple(p["seq"] for p in bad)) == parse("64*batch")
    assert Fitter(POINTS[:-1]).fit(tuple(p["seq"] for p in POINTS[:-1])) == parse("seq")


def test_few_points_give_no_three_terms() -> None:
    three = POINTS[:3]
    values = tuple(bind_dim(parse("batch*seq*seq + 3*batch + 7*seq"), point) for point in three)
    assert Fitter(three).fit(values) is None


def test_one_free_size() -> None:
    fitter = Fitter(SEQ_ONLY[:-1])
    for text in ("seq", "7*seq + 3", "2*seq*seq + 5*seq + 1"):
        found = fitter.fit(tuple(bind_dim(parse(text), point) for point in SEQ_ONLY[:-1]))
        assert isinstance(found, Expr)
        assert found({"seq": 8192}) == bind_dim(parse(text), {"seq": 8192})


def test_three_terms_at_multiples_of_a_chunk() -> None:
    found = points(ranges({"batch": 2, "seq": 512}, {}, (256,)))
    wanted = parse("3*batch + 5*seq + 7")
    fitted = Fitter(found[:-1], (256, 16, 32)).fit(tuple(bind_dim(wanted, point) for point in found[:-1]))
    assert isinstance(fitted, Expr)
    assert bind_dim(fitted, {"batch": 8, "seq": 4096}) == bind_dim(wanted, {"batch": 8, "seq": 4096})


def test_no_free_size() -> None:
    assert Fitter([{}]).fit((5,)) == 5
