"""Where expressions hold and at which sizes they are found."""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchperf.frontend.regime import Range, points, ranges

BREAKS = st.sampled_from([(), (32,), (256,), (32, 256), (256, 32)])
SIZES = st.fixed_dictionaries({"batch": st.integers(1, 64), "seq": st.integers(1, 5000)})


def regime_of(sizes: dict[str, int], limit: int | None, breaks: tuple[int, ...]) -> tuple[Range, ...]:
    return ranges(sizes, {} if limit is None else {"seq": max(limit, sizes["seq"])}, breaks)


@given(SIZES, st.none() | st.integers(1, 9000), BREAKS)
def test_the_sizes_lie_in_their_regime(sizes: dict[str, int], limit: int | None, breaks: tuple[int, ...]) -> None:
    regime = regime_of(sizes, limit, breaks)
    assert {r.name for r in regime} == {"batch", "seq"}
    assert all(sizes[r.name] in r for r in regime)


@given(SIZES, st.none() | st.integers(1, 9000), BREAKS)
def test_every_point_lies_in_its_regime(sizes: dict[str, int], limit: int | None, breaks: tuple[int, ...]) -> None:
    regime = regime_of(sizes, limit, breaks)
    for point in points(regime):
        assert all(point[r.name] in r for r in regime), point


@given(SIZES, st.none() | st.integers(1, 9000), BREAKS)
def test_no_two_points_are_equal(sizes: dict[str, int], limit: int | None, breaks: tuple[int, ...]) -> None:
    found = points(regime_of(sizes, limit, breaks))
    assert 1 <= len(found) <= 6
    assert all(a != b for a, b in combinations(found, 2))


def most_proportional(regime: tuple[Range, ...]) -> int:
    """The most points at which one and the same ratio of seq to batch holds."""
    ratios = [Fraction(point["seq"], point["batch"]) for point in points(regime)]
    return max(map(ratios.count, ratios))


@given(st.integers(2, 64), st.integers(2, 9000), st.none() | st.integers(300, 9000))
def test_batch_is_never_proportional_to_seq(batch: int, seq: int, limit: int | None) -> None:
    """Else 64*batch would fit where seq is meant: any two points tell them apart."""
    assert most_proportional(regime_of({"batch": batch, "seq": seq}, limit, ())) == 1


@pytest.mark.parametrize("chunk", [32, 64, 100, 256])
@pytest.mark.parametrize("seq", [2, 3])
def test_nor_beside_a_break(chunk: int, seq: int) -> None:
    """Three points tell them apart, as many as a sum of three terms is solved from."""
    for size in (chunk // 2, chunk, chunk + 1, seq * chunk - 1, seq * chunk):
        assert most_proportional(regime_of({"batch": 2, "seq": size}, None, (chunk,))) <= 2, size


@given(st.integers(1, 5000), st.integers(1, 5000), BREAKS)
def test_regimes_are_disjoint_or_equal(a: int, b: int, breaks: tuple[int, ...]) -> None:
    """A size of another's regime has the same regime: so a cache needs no choice between graphs."""
    (mine,), (other,) = ranges({"seq": a}, {}, breaks), ranges({"seq": b}, {}, breaks)
    if b in mine:
        assert mine == other


@pytest.mark.parametrize(
    ("sizes", "limits", "breaks", "expected"),
    [
        ({"batch": 1}, {}, (), Range("batch", 1, 1)),
        ({"batch": 2}, {}, (), Range("batch", 2, -1)),
        ({"seq": 1}, {}, (), Range("seq", 1, 1)),
        ({"seq": 7}, {"seq": 64}, (), Range("seq", 2, 64)),
        ({"seq": 256}, {}, (256,), Range("seq", 2, 256)),
        ({"seq": 257}, {}, (256,), Range("seq", 257, -1, -256)),
        ({"seq": 512}, {"seq": 4096}, (256,), Range("seq", 257, 4096, 256)),
        ({"seq": 100}, {"seq": 64}, (256,), Range("seq", 2, 64)),
    ],
)
def test_regimes(sizes: dict[str, int], limits: dict[str, int], breaks: tuple[int, ...], expected: Range) -> None:
    assert ranges(sizes, limits, breaks) == (expected,)


def test_a_range_with_a_step() -> None:
    assert [n for n in range(1, 30) if n in Range("seq", 8, 24, 8)] == [8, 16, 24]
    assert [n for n in range(1, 20) if n in Range("seq", 8, 17, -8)] == [9, 10, 11, 12, 13, 14, 15, 17]


def test_a_fixed_size_has_one_point() -> None:
    assert points((Range("batch", 1, 1),)) == [{"batch": 1}]
    assert points(()) == [{}]
