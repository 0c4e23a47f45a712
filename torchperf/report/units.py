"""Base units -> what a person reads. Inside, only seconds, bytes and FLOPs."""

from __future__ import annotations

GIB = 2**30


def gib(nbytes: float) -> str:
    """Bytes in GiB, two decimals."""
    return f"{nbytes / GIB:,.2f}"


def size(nbytes: float) -> str:
    """Bytes with a binary unit: `80.00 GiB`, `50.0 MiB`, `640 B`."""
    for factor, unit, decimals in ((2**40, "TiB", 2), (GIB, "GiB", 2), (2**20, "MiB", 1), (2**10, "KiB", 1)):
        if abs(nbytes) >= factor:
            return f"{nbytes / factor:,.{decimals}f} {unit}"
    return f"{nbytes:,.0f} B"


def seconds(value: float) -> str:
    """Seconds with a unit that leaves a digit before the point: `812.3 ms`, `4.50 us`, `13.50 h`."""
    if value >= 2 * 86400:
        return f"{value / 86400:,.1f} days"
    if value >= 2 * 3600:
        return f"{value / 3600:,.2f} h"
    for factor, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if value >= factor:
            return f"{_digits(value / factor)} {unit}"
    return "0 s" if value == 0 else f"{value / 1e-9:.3g} ns"


def si(value: float, unit: str, decimals: int | None = None) -> str:
    """A count or a rate with an SI prefix, T up to 10,000: `57.91 GFLOP`, `3.35 TB/s`, `989.0 TFLOP/s`."""
    for factor, prefix, limit in (
        (1e15, "P", 1e16),
        (1e12, "T", 1e12),
        (1e9, "G", 1e9),
        (1e6, "M", 1e6),
        (1e3, "k", 1e3),
    ):
        if abs(value) >= limit:
            scaled = value / factor
            return f"{_digits(scaled) if decimals is None else f'{scaled:,.{decimals}f}'} {prefix}{unit}"
    return f"{value:,.3g} {unit}"


def percent(share: float) -> str:
    """A share as `48.5 %`."""
    return f"{100 * share:.1f} %"


def count(value: float) -> str:
    """A whole number with commas."""
    return f"{value:,.0f}"


def rate(value: float) -> str:
    """Tokens or samples a second: whole from 100 on, else three digits."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def plain(value: float) -> str:
    """A number without needless zeros: `2`, `0.5`, `16`."""
    return f"{value:,.4g}" if value < 1e4 else f"{value:,.0f}"


def plural(number: int, noun: str) -> str:
    """`1 op`, `3 ops`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _digits(value: float) -> str:
    return f"{value:,.1f}" if abs(value) >= 100 else f"{value:,.2f}"


def percent2(share: float) -> str:
    """A share with two decimals, where a measured run is compared: `2.84 %`."""
    return f"{100 * share:.2f} %"
