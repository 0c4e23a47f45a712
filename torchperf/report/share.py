"""Where the time goes: by operator kind, by module, by bound, and the longest kernels."""

from __future__ import annotations

from collections.abc import Sequence

from torchperf.graph.estimate import Estimate, Share

from . import units
from .section import Section

KINDS, MODULES, KERNELS = 6, 6, 5  # rows shown; the rest is summed in one


def by_kind(e: Estimate) -> Section:
    """Time by operator kind, longest first, each with what bounds it; then the whole by bound."""
    return Section(
        "time by kind",
        ("time", "share", "calls", "FLOP", "bytes moved", "bound by"),
        _rows(e.by_kind, KINDS, e.device_time_s),
        right=(1, 2, 3, 4, 5),
        flexible=(0,),
        lines=(bound(e),) if e.by_bound else (),
    )


def by_module(e: Estimate) -> Section:
    """Time by module, longest first."""
    return Section(
        "time by module",
        ("time", "share", "calls", "FLOP", "bytes moved", "bound by"),
        _rows(e.by_module, MODULES, e.device_time_s),
        right=(1, 2, 3, 4, 5),
        flexible=(0,),
    )


def bound(e: Estimate) -> str:
    """One line: the share of device time that compute, memory or launch decides."""
    shares = (f"{s.name} {units.percent(_share(s.seconds, e.device_time_s))}" for s in _longest(e.by_bound))
    return f"bound by: {', '.join(shares)} of device time"


def top_kernels(e: Estimate) -> Section:
    """The kernels with the longest total time, with their dims."""
    rows = tuple(
        (s.name, s.detail, s.phase, units.count(s.calls), units.seconds(s.seconds),
         units.percent(_share(s.seconds, e.device_time_s)), s.bound)
        for s in _longest(e.top_kernels)[:KERNELS]
    )  # fmt: skip
    headers = ("dims", "phase", "calls", "time", "share", "bound by")
    return Section("top kernels", headers, rows, right=(3, 4, 5), flexible=(0, 1))


def _longest(shares: Sequence[Share]) -> list[Share]:
    return sorted(shares, key=lambda s: -s.seconds)


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _rows(shares: Sequence[Share], limit: int, whole: float) -> tuple[tuple[str, ...], ...]:
    ordered = _longest(shares)
    shown, rest = (ordered, []) if len(ordered) <= limit + 1 else (ordered[:limit], ordered[limit:])
    if rest:
        shown = [
            *shown,
            Share(
                f"{len(rest)} others",
                sum(s.seconds for s in rest),
                sum(s.calls for s in rest),
                sum(s.flops for s in rest),
                sum(s.nbytes for s in rest),
            ),
        ]
    return tuple(
        (
            s.name or "(outside any module)",
            units.seconds(s.seconds),
            units.percent(_share(s.seconds, whole)),
            units.count(s.calls),
            units.si(s.flops, "FLOP") if s.flops else "0",
            units.si(s.nbytes, "B"),
            s.bound,
        )
        for s in shown
    )
