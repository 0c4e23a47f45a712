"""Constants of matrix products from measured rows: one set per (accelerator, class of types).

Every constant starts from a prior that no row of the device has touched, the same for all devices, and `simplex` pulls
it there: what the rows do not tell stays. NeuSight's rows are long and launched one by one, so floor, cta and split
stay at the prior and the clock's own floor is fitted in their place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np
from simplex import Array, Parameters
from simplex import fit as refine

from torchperf.price.matmul import products, quantise_seconds
from torchperf.price.tiles import Conditions, Constants, Products, Rates, cheapest
from torchperf.validate.rows import Case, on_clock

PRIOR: Parameters = {
    "e_burst": 0.9, "e_sustained": 0.8, "e_memory": 0.9, "floor": 1.6e-6, "cta": 1.2e-6, "k_step": 3e-10,
    "split": 2.5e-6, "l2_ratio": 5.0, "ramp": 0.4, "write": 1.3, "burst": 3e-4, "keep": 0.01,
}  # fmt: skip
QUANTISE, CLOCK_FLOOR = 3e-6, 3e-5
MOST = {"e_burst": 0.99, "e_sustained": 0.99, "e_memory": 0.99}
LEAST = {"write": 1.0, "l2_ratio": 1.0, "e_burst": 0.2, "e_sustained": 0.2, "e_memory": 0.2}
HELD = {"eager": ("floor", "cta", "split", "k_step", "ramp", "keep")}  # by clock: what its rows do not tell
COMMITS = {"aiconfigurator": "095f58a5", "vidur": "7d475133", "neusight": "6945927d"}


@dataclass(frozen=True)
class Rows:
    """The rows of one device and class, as columns."""

    dtypes: str
    rates: Rates
    cases: tuple[Case, ...]

    @property
    def measured(self) -> Array:
        """Measured seconds."""
        return np.array([c.seconds for c in self.cases])

    @property
    def of(self) -> Products:
        """The products."""
        return products(self.dtypes, *(np.array([float(getattr(c, d)) for c in self.cases]) for d in DIMS))

    @property
    def conditions(self) -> Conditions:
        """How each row ran."""
        flags = [(one.clock == "sustained", one.clock == "burst") for one in self.cases]
        return Conditions(*np.array(flags, dtype=float).T)

    def start(self) -> tuple[Parameters, Parameters]:
        """Constants to refine and those held."""
        start, held = dict(PRIOR), Parameters()
        for name in HELD.get(self.cases[0].clock, ()):
            held[name] = start.pop(name)
        if any(c.quantised for c in self.cases):
            start["quantise"] = QUANTISE
            held["floor"] = start.pop("floor")
        if self.cases[0].clock == "eager":
            start["clock_floor_neusight"] = CLOCK_FLOOR
        return start, held

    def predict(self, found: Mapping[str, float]) -> Array:
        """What the clocks would show under those constants."""
        c = constants(found)
        of = self.of
        seconds = cheapest(of, self.rates, c, self.conditions)
        if "quantise" in found:
            seconds = seconds + quantise_seconds(of, self.dtypes, self.rates, c, found["quantise"])
        if "clock_floor_neusight" in found:
            seconds = on_clock(seconds, found["clock_floor_neusight"])
        return seconds

    def fitted(self) -> Parameters:
        """The constants refined on these rows."""
        start, held = self.start()
        found, _ = refine(lambda free: self.predict({**held, **free}), self.measured, start, MOST, LEAST)
        return {**held, **found}

    def part(self, keep: Sequence[bool]) -> Rows:
        """Some of the rows."""
        return Rows(self.dtypes, self.rates, tuple(c for c, kept in zip(self.cases, keep, strict=True) if kept))


DIMS = ("batch", "m", "n", "k")


def constants(found: Mapping[str, float]) -> Constants:
    """Those of the tile search; a ceiling for long runs never above that of a burst."""
    named = {field.name: found[field.name] for field in fields(Constants)}
    named["e_sustained"] = min(named["e_sustained"], named["e_burst"])
    return Constants(**named)
