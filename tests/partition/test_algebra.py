"""Dims as lists of factors: what `unify` and `cut` make of them."""

from __future__ import annotations

import pytest

from torchperf.partition.algebra import Clash, Factor, cut, flatten, fresh, leaves, show, sum_of, unify


def test_equal_sizes_become_one() -> None:
    a, b = fresh(8), fresh(8)
    unify(a, b)
    assert flatten(a)[0] is flatten(b)[0]


def test_a_larger_leaf_is_split_outer_to_inner() -> None:
    rows, heads, width = fresh(32), fresh(4), fresh(8)
    unify(rows, [*heads, *width])
    assert [f.size for f in flatten(rows)] == [4, 8]


def test_merged_dims_meet_at_a_common_refinement() -> None:
    merged, batch, heads = fresh(6), fresh(2), fresh(3)
    unify([*batch, *heads], merged)
    assert flatten(merged) == [flatten(batch)[0], flatten(heads)[0]]


def test_sizes_that_do_not_nest_clash() -> None:
    with pytest.raises(Clash):
        unify([*fresh(6), *fresh(4)], [*fresh(4), *fresh(6)])


def test_a_cut_makes_a_sum_of_segments() -> None:
    fused = fresh(12)
    q, k, v = cut(fused, [4, 8])
    for part in (q, k, v):
        unify(part, [*fresh(2), *fresh(2)])
    assert show(fused) == "(2*2 + 2*2 + 2*2)"


def test_a_common_inner_factor_is_pulled_out_of_a_sum() -> None:
    """(32 + 8 + 8) heads of 64 against 48 * 64."""
    fused = fresh(48 * 64)
    parts = cut(fused, [32 * 64, 40 * 64])
    width = fresh(64)
    for part, heads in zip(parts, (32, 8, 8), strict=True):
        unify(part, [*fresh(heads), *width])
    every = fresh(48)
    unify([*every, *width], fused)
    assert show(every) == "(32 + 8 + 8)"
    assert flatten(fused)[-1] is flatten(width)[0]


def test_sums_are_refined_against_each_other() -> None:
    a, b = [sum_of([fresh(4), fresh(8)])], [sum_of([fresh(8), fresh(4)])]
    unify(a, b)
    assert [f.size for f in leaves(a)] == [4, 4, 4]


def test_a_position_of_one_is_no_factor() -> None:
    assert fresh(1) == []
    unify([], [Factor(1)])
