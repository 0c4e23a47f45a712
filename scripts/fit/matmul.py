"""Constants of matrix products from measured rows: one set per (accelerator, class of types).

Every constant starts from a prior, the same for all devices, and `simplex` pulls it there: what the rows do not tell
stays. The kernels of packed types walk k slowly and do not split it: a prior of their own.
NeuSight's rows are long and launched one by one, so floor, cta and split stay at the prior and the clock's own floor
is fitted. `keep` is fitted where a tenth of a device's rows of some class ran out of L2; elsewhere nothing is kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from common import cross_validated, pooled
from simplex import Array, Parameters
from simplex import fit as refine

from torchperf.hardware import load_accelerator
from torchperf.price.matmul import products, quantise_seconds, rates_of
from torchperf.price.tiles import Conditions, Constants, Products, Rates, cheapest
from torchperf.validate.rows import Case, cases, on_clock

PRIOR: Parameters = {
    "e_burst": 0.95, "e_sustained": 0.82, "e_memory": 0.93, "floor": 1.6e-6, "cta": 1.05e-6, "k_step": 3.7e-10,
    "split": 2.5e-6, "l2_ratio": 6.5, "ramp": 0.38, "write": 1.25, "keep": 0.01,
}  # fmt: skip
PACKED: Parameters = {"split": 1e-5, "k_step": 8e-10}
PACKED_CLASSES = ("nvfp4", "sq", "int8_wo", "int4_wo")
KEPT = 0.9  # keep, to start from
QUANTISE, CLOCK_FLOOR = 6e-6, 3e-5
MOST = {"e_burst": 0.99, "e_sustained": 0.99, "e_memory": 0.99}
LEAST = {"write": 1.0, "l2_ratio": 1.0, "e_burst": 0.2, "e_sustained": 0.2, "e_memory": 0.2}
UNTOLD = ("floor", "cta", "split", "k_step", "ramp")  # by rows that NeuSight's clock measured
DIMS = ("batch", "m", "n", "k")
LEFT_OUT = {"h200-sxm-141gb": "h100-sxm-80gb", "gb200": "b200-sxm-180gb"}  # device -> whose constants price it
LONG, FEW = 1e11, 10  # FLOPs of a product from which its time is that of the ceiling; rows that tell it
PUBLISHED = {  # (device, class) -> FLOP/s of products of a Llama 70B over hundreds of runs [semianalysis2024]
    ("h100-sxm-80gb", "16bit"): 720e12, ("h100-sxm-80gb", "fp8"): 1280e12,
    ("h200-sxm-141gb", "16bit"): 720e12, ("h200-sxm-141gb", "fp8"): 1280e12,
}  # fmt: skip
LLAMA = ((16384, 8192, 1280), (16384, 1024, 8192), (16384, 8192, 7168), (16384, 3584, 8192), (8192, 8192, 8192))
WORKERS = 3
COMMITS = {"aiconfigurator": "095f58a5", "vidur": "7d475133", "neusight": "6945927d"}


@dataclass(frozen=True)
class Rows:
    """The rows of one device and class, as columns; `kept` where the device's L2 keeps operands between replays."""

    accelerator: str
    dtypes: str
    rates: Rates
    kept: bool
    cases: tuple[Case, ...]

    @property
    def measured(self) -> Array:
        """Measured seconds."""
        return np.array([c.seconds for c in self.cases])

    @property
    def of(self) -> Products:
        """The products."""
        return products(self.dtypes, [np.array([float(getattr(c, d)) for c in self.cases]) for d in DIMS])

    @property
    def conditions(self) -> Conditions:
        """How each row ran."""
        flags = [(one.clock == "sustained", one.clock == "burst") for one in self.cases]
        return Conditions(*np.array(flags, dtype=float).T)

    def start(self) -> tuple[Parameters, Parameters]:
        """Constants to refine and those held."""
        start, held = PRIOR | (PACKED if self.dtypes in PACKED_CLASSES else {}), Parameters()
        eager = self.cases[0].clock == "eager"
        for name in UNTOLD if eager else ():
            held[name] = start.pop(name)
        if self.kept:
            start["keep"] = KEPT
        else:
            held["keep"] = start.pop("keep")
        if any(c.quantised for c in self.cases):
            start["quantise"] = QUANTISE
            held["floor"] = start.pop("floor")
        if eager:
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
        return self.ceiling({**held, **found, "e_sustained": min(found["e_sustained"], found["e_burst"])})

    def ceiling(self, found: Parameters) -> Parameters:
        """The ceiling of long runs alone, so that long products at sustained clocks are neither too fast nor too slow.

        Short products, most of the rows, hardly tell it: their time lies in filling and draining the tiles.
        """
        long = [2 * c.m * c.n * c.k * c.batch >= LONG and c.clock == "sustained" for c in self.cases]
        target = PUBLISHED.get((self.accelerator, self.dtypes))
        if target is None and sum(long) < FEW:
            return found
        own = self.part(long) if target is None else self.llama(target)
        low, high = LEAST["e_sustained"], found["e_burst"]
        for _ in range(30):
            middle = (low + high) / 2
            slow = float(np.median(own.errors({**found, "e_sustained": middle}))) > 0
            low, high = (middle, high) if slow else (low, middle)
        return {**found, "e_sustained": round((low + high) / 2, 4)}

    def llama(self, rate: float) -> Rows:
        """Products of a Llama 70B that run at `rate` FLOP/s, without their quantisation."""
        like = replace(self.cases[0], batch=1, clock="sustained", quantised=False, resident=False)
        shapes = [replace(like, m=m, n=n, k=k, seconds=2 * m * n * k / rate) for m, n, k in LLAMA]
        return replace(self, cases=tuple(shapes))

    def part(self, keep: Sequence[bool]) -> Rows:
        """Some of the rows."""
        return replace(self, cases=tuple(c for c, kept in zip(self.cases, keep, strict=True) if kept))

    def errors(self, found: Mapping[str, float]) -> Array:
        """Predicted over measured, less one."""
        return self.predict(found) / self.measured - 1


def constants(found: Mapping[str, float]) -> Constants:
    """Those of the tile search; a ceiling for long runs never above that of a burst."""
    named = {field.name: found[field.name] for field in fields(Constants)}
    named["e_sustained"] = min(named["e_sustained"], named["e_burst"])
    return Constants(**named)


def read(rows: Iterable[Mapping[str, str]]) -> list[Rows]:
    """The rows of a file by device and class."""
    found: dict[tuple[str, str], list[Case]] = {}
    for one in cases(rows)[0]:
        found.setdefault((load_accelerator(one.gpu).name, one.dtypes), []).append(one)
    kept = {name for (name, _), own in found.items() if sum(one.resident for one in own) * 10 >= len(own)}
    return [
        Rows(name, dtypes, rates_of(load_accelerator(name), dtypes), name in kept, tuple(own))
        for (name, dtypes), own in sorted(found.items())
    ]


def held_out(rows: Rows) -> Array:
    """[salts, rows]: errors by pooled 3-fold cross-validation by hash of (n, k)."""

    def predict(fitted_on: Sequence[bool], predicted: Sequence[bool]) -> Array:
        return rows.part(predicted).errors(rows.part(fitted_on).fitted())

    return cross_validated([(one.n, one.k) for one in rows.cases], predict)


def fit(rows: Iterable[Mapping[str, str]]) -> dict[str, dict[str, dict[str, Any]]]:
    """{accelerator: {class: table of its fit}} from the rows of a file in the shared format."""
    tables: dict[str, dict[str, dict[str, Any]]] = {}
    sets = read(rows)
    with ProcessPoolExecutor(min(WORKERS, len(sets) or 1)) as pool:
        for own, table in zip(sets, pool.map(_fitted_table, sets), strict=True):
            tables.setdefault(own.accelerator, {})[own.dtypes] = table
    return tables


def report(rows: Iterable[Mapping[str, str]], tables: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """A device priced with another's constants, and how far two sources differ on the same product."""
    sets = {(own.accelerator, own.dtypes): own for own in read(rows)}
    lines = []
    for name, other in LEFT_OUT.items():
        own = sets.get((name, "16bit"))
        if own and other in tables:
            median, p90 = pooled(own.errors(tables[other]["16bit"]["parameters"]))
            lines.append(f"{name}.16bit with the constants of {other}: median {median:.1%} (bar 12.0%), p90 {p90:.1%}")
    return lines + [line for own in sets.values() if (line := _spread(own))]


def _spread(rows: Rows) -> str:
    """The line that says by how much a product's times differ between its sources; nothing for fewer than 5."""
    times: dict[tuple[int, ...], list[float]] = {}
    for one in rows.cases:
        times.setdefault((one.batch, one.m, one.n, one.k), []).append(one.seconds)
    apart = [max(each) / min(each) - 1 for each in times.values() if len(each) > 1]
    if len(apart) < 5:
        return ""
    return (
        f"{rows.accelerator}.{rows.dtypes}: {len(apart)} products measured more than once differ by a median of "
        f"{np.median(apart):.1%}, p90 {np.percentile(apart, 90):.1%}"
    )


def _fitted_table(rows: Rows) -> dict[str, Any]:
    return _table(rows, rows.fitted(), held_out(rows))


def _table(rows: Rows, found: Parameters, errors: Array) -> dict[str, Any]:
    median, p90 = pooled(errors)
    sources = {one.source: 0 for one in rows.cases}
    for one in rows.cases:
        sources[one.source] += 1
    named = " and ".join(f"{name} {COMMITS.get(name, '')}".strip() for name in sorted(sources))
    spans = {dim: [getattr(one, dim) for one in rows.cases] for dim in DIMS}
    return {
        "parameters": {name: float(f"{value:.4g}") for name, value in found.items()},
        "rows": f"{len(rows.cases)} rows of {named}; errors by 3-fold cross-validation by (n, k), mean of three salts",
        "range": ", ".join(f"{dim} {min(span)} to {max(span)}" for dim, span in spans.items() if max(span) > 1),
        "median_error": round(median, 4),
        "p90_error": round(p90, 4),
        "source": max(sources, key=lambda name: sources[name]),
        "basis": "fitted",
    }
