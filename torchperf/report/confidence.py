"""Confidence -> a sentence: the error of measured runs of the class, of a wider one, or that there is none."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torchperf.graph.confidence import ANY, Confidence, ErrorClass

from . import units


def of_metric(found: Iterable[Confidence], metric: str) -> Confidence | None:
    """The one of that metric."""
    return next((one for one in found if one.metric == metric), None)


def error(c: Confidence) -> str:
    """The median error, or `none` where nothing of the class was measured."""
    return units.percent(c.found.median_error) if c.found and c.exact else "none"


def sentence(c: Confidence) -> str:
    """What was measured and how far off it was."""
    asked = f"{c.gpu} with {c.runtime}"
    if c.found is None:
        return f"not validated: no measured run of {asked}"
    if c.exact:
        return f"median of {units.plural(c.found.rows, 'measured run')} of {asked}{_spread(c.found)}"
    wider = f"{c.found.runtime} on other GPUs" if c.found.gpu == ANY else f"{c.found.gpu} with other runtimes"
    return (
        f"not validated: no measured run of {asked}; {units.plural(c.found.rows, 'run')} of {wider}: median "
        f"{units.percent(c.found.median_error)}{_spread(c.found)}"
    )


def _spread(c: ErrorClass) -> str:
    plain = "" if c.roofline_median is None else f"; a plain roofline {units.percent(c.roofline_median)}"
    return f", p90 {units.percent(c.p90_error)}{plain}"


def confidence_dict(found: Iterable[Confidence]) -> dict[str, Any]:
    """By metric: `exact`, whether runs of this GPU with this runtime were measured; `class`, whose errors these are."""
    return {
        c.metric: {
            "exact": c.exact,
            "class": None if c.found is None else {"gpu": c.found.gpu, "runtime": c.found.runtime},
            "rows": 0 if c.found is None else c.found.rows,
            "median_error": None if c.found is None else c.found.median_error,
            "p90_error": None if c.found is None else c.found.p90_error,
            "roofline_median_error": None if c.found is None else c.found.roofline_median,
            "sources": [] if c.found is None else list(c.found.sources),
        }
        for c in found
    }
