"""Units a file may use, by quantity, and the factor to base units: GB = 1e9, GiB = 2**30."""

from __future__ import annotations

import math
from dataclasses import dataclass

_DECIMAL = {"B": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}
_BYTES = {**_DECIMAL, "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30, "TiB": 2.0**40}
_RATES = {f"{unit}/s": factor for unit, factor in _BYTES.items()}


@dataclass(frozen=True, slots=True)
class Quantity:
    """What kind of number a key holds.

    base      its base unit
    units     unit in a file -> factor to the base unit
    positive  zero is a fault
    at_most   a value above it, in base units, is a fault
    whole     a fraction is a fault
    """

    name: str
    base: str
    units: dict[str, float]
    positive: bool = True
    at_most: float | None = None
    whole: bool = False

    def complaint(self, base: float) -> str:
        """What is wrong with a value in base units; empty if nothing is."""
        if not math.isfinite(base):
            return "must be finite"
        if base < 0:
            return "must not be negative"
        if base == 0 and self.positive:
            return "must not be zero"
        if self.at_most is not None and base > self.at_most:
            return f"must be at most {self.at_most:g}"
        return "must be whole" if self.whole and base != int(base) else ""


_OPERATIONS = {"GFLOP/s": 1e9, "TFLOP/s": 1e12, "PFLOP/s": 1e15, "TOP/s": 1e12, "POP/s": 1e15}
FLOP_RATE = Quantity("rate of operations", "FLOP/s", _OPERATIONS)
BYTES = Quantity("bytes", "B", _BYTES, positive=False)
BANDWIDTH = Quantity("bandwidth", "B/s", {**_RATES, "Gbit/s": 1.25e8, "Tbit/s": 1.25e11})
DURATION = Quantity("time", "s", {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}, positive=False)
FREQUENCY = Quantity("frequency", "Hz", {"MHz": 1e6, "GHz": 1e9})
POWER = Quantity("power", "W", {"W": 1.0, "kW": 1e3})
RATIO = Quantity("ratio", "1", {"1": 1.0})
SHARE = Quantity("share", "1", {"1": 1.0, "%": 1e-2}, at_most=1.0)
COUNT = Quantity("count", "1", {"1": 1.0}, positive=False, whole=True)


def to_base(value: float, unit: str, quantity: Quantity) -> float:
    """`value unit` in the base unit of `quantity`; KeyError for a unit of another quantity."""
    return float(value) * quantity.units[unit]


def from_base(value: float, unit: str, quantity: Quantity) -> float:
    """A base value as a file would state it in `unit`: divide on the way out."""
    return value / quantity.units[unit]
