"""Collectives of an axis that was split before: the factors of another axis pass through them."""

from __future__ import annotations

from .algebra import Dim, fresh
from .rules import rule
from .step import LINEAR, Step


@rule("all_reduce")
def all_reduce(step: Step) -> None:
    step.put(0, step.dims(0))
    step.facts.linear, step.facts.through = LINEAR, (0,)


@rule("all_gather", "reduce_scatter", "all_to_all")
def regroup(step: Step) -> None:
    """Dims of equal length are the same; where one is a multiple of the other, the ranks are its outer factor."""
    out: list[Dim] = []
    for own, before, after in zip(step.dims(0), step.shape(0), step.out_shape(), strict=True):
        if before == after:
            out.append(own)
        elif after % before == 0:
            out.append([*fresh(after // before), *own])
        else:
            inner = fresh(after)
            step.same([*fresh(before // after), *inner], own)
            out.append(inner)
    step.put(0, out)
    step.facts.linear, step.facts.through = LINEAR, (0,)
