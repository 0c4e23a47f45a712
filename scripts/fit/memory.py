"""Constants of memory-bound kernels from measured rows: one set per (accelerator, kind of kernel).

NeuSight's clock does not tell a kernel's floor from its own: there the floor stays the device's `kernel_floor`, and
`clock_floor_neusight` is fitted once per device, on all its rows together. `simplex` pulls each set towards `START`;
a device whose rows of one kind are few takes what they tell and the rest from there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import experts
import numpy as np
from simplex import FOLDS, Array, Parameters, third
from simplex import fit as refine

from torchperf.graph.system import Accelerator
from torchperf.hardware import load_accelerator
from torchperf.price.memory_bound import Constants, parts
from torchperf.validate.other_rows import Case, case, on_clock

# e_m from which each kind starts
START = {
    "elementwise": 0.85, "rows": 0.7, "serving_rows": 0.4, "gather": 0.2, "quantize": 0.85, "gated": 0.6, "rope": 0.5,
}  # fmt: skip
FLOOR, L2_RATIO, CLOCK_FLOOR = 2.5e-6, 1.5, 3e-5
MOST, LEAST = {"e_m": 0.98}, {"l2_ratio": 1.0}
FEWEST = 2  # rows of a kind on a device; below that it takes the fit of another device
Sets = dict[str, Parameters]


@dataclass(frozen=True)
class Rows:
    """All rows of one device."""

    accelerator: Accelerator
    cases: tuple[Case, ...]

    def seconds(self, constants: Mapping[str, float], kernel: str) -> Array:
        """What the clocks would show under those constants."""
        memory = self.accelerator.memory
        vector = self.accelerator.peak_flops_per_s("vector", "fp32")
        nbytes = np.array([float(c.work.nbytes) for c in self.cases])
        flops = np.array([float(c.work.flops_executed) for c in self.cases])
        c = Constants(constants["floor"], constants["e_m"], constants["l2_ratio"])
        priced = parts(nbytes, flops, c, memory.bandwidth.value, memory.l2.value, vector, resident=True).seconds
        if not self.eager:
            return priced
        return on_clock(priced, constants["clock_floor_neusight"])

    @property
    def eager(self) -> bool:
        """Whether NeuSight's clock measured them; no device has both."""
        return any(c.eager for c in self.cases)

    @property
    def measured(self) -> Array:
        """Measured times."""
        return np.array([c.seconds for c in self.cases])

    def refined(self, kernel: str, start: Parameters, fixed: Parameters) -> Parameters:
        """All constants, those of `start` refined and those of `fixed` as they are."""
        found, _ = refine(lambda c: self.seconds({**c, **fixed}, kernel), self.measured, start, MOST, LEAST)
        return {**found, **fixed}

    def kinds(self) -> list[str]:
        """The kinds of kernel among them, those with the most rows first."""
        names = [c.kernel for c in self.cases]
        return sorted(set(names), key=lambda name: (-names.count(name), name))

    def of(self, kernel: str) -> Rows:
        """Those of one kind of kernel."""
        return Rows(self.accelerator, tuple(c for c in self.cases if c.kernel == kernel))

    def part(self, held_out: int, inside: bool) -> Rows:
        """The third `held_out` by the hash of op and shape, or the others."""
        return Rows(self.accelerator, tuple(c for c in self.cases if (third(c.op, *c.shape) == held_out) == inside))


def read(rows: Iterable[Mapping[str, str]]) -> list[Rows]:
    """The rows of a file that are memory bound, by device."""
    found: dict[str, list[Case]] = {}
    devices: dict[str, Accelerator] = {}
    for row in rows:
        one = case(row)
        if isinstance(one, Case):
            device = load_accelerator(one.gpu)
            devices[device.name] = device
            found.setdefault(device.name, []).append(one)
    return [_enough(Rows(devices[name], tuple(found[name]))) for name in sorted(found)]


def _enough(rows: Rows) -> Rows:
    few = {kernel for kernel in rows.kinds() if len(rows.of(kernel).cases) < FEWEST}
    return Rows(rows.accelerator, tuple(c for c in rows.cases if c.kernel not in few))


def sets_of(rows: Rows) -> Sets:
    """{kind of kernel: constants} of one device; the clock's floor from the kind with the most rows."""
    sets: Sets = {}
    clock = CLOCK_FLOOR
    for kernel in rows.kinds():
        own = rows.of(kernel)
        start, fixed = {"e_m": START[kernel], "l2_ratio": L2_RATIO}, {}
        if not rows.eager:
            start["floor"] = FLOOR
        elif kernel == "elementwise":
            start["clock_floor_neusight"] = clock
            fixed = {"floor": rows.accelerator.kernel_floor.value}
        else:
            del start["l2_ratio"]
            fixed = {"floor": rows.accelerator.kernel_floor.value, "l2_ratio": 1.0, "clock_floor_neusight": clock}
        sets[kernel] = own.refined(kernel, start, fixed)
        clock = sets[kernel].get("clock_floor_neusight", clock)
    return sets


def held_out(devices: Sequence[Rows]) -> dict[tuple[str, str], list[tuple[Case, float]]]:
    """{(device, kind): (row, error)} of each row under constants fitted on the other two thirds."""
    errors: dict[tuple[str, str], list[tuple[Case, float]]] = {}
    for rows in devices:
        for k in range(FOLDS):
            sets = sets_of(rows.part(k, inside=False))
            for kernel in rows.kinds():
                test = rows.part(k, inside=True).of(kernel)
                if test.cases:
                    constants = sets.get(kernel) or _start(rows, kernel)
                    error = test.seconds(constants, kernel) / test.measured - 1
                    pairs = zip(test.cases, error.tolist(), strict=True)
                    errors.setdefault((rows.accelerator.name, kernel), []).extend(pairs)
    return errors


def _start(rows: Rows, kernel: str) -> Parameters:
    floor = rows.accelerator.kernel_floor.value if rows.eager else FLOOR
    return {"floor": floor, "e_m": START[kernel], "l2_ratio": L2_RATIO, "clock_floor_neusight": CLOCK_FLOOR}


def fit(rows: Iterable[Mapping[str, str]]) -> dict[str, dict[str, dict[str, Any]]]:
    """{accelerator: {key: table of its fit}} from the rows of a file in the shared format."""
    rows = list(rows)
    devices = [device for device in read(rows) if device.cases]
    errors = held_out(devices)
    tables = {
        device.accelerator.name: {
            kernel: _table(device.of(kernel), constants, errors[device.accelerator.name, kernel])
            for kernel, constants in sets_of(device).items()
        }
        for device in devices
    }
    for name, table in experts.fit(rows).items():
        tables.setdefault(name, {})["experts"] = table
    return tables


def _table(rows: Rows, constants: Parameters, errors: Sequence[tuple[Case, float]]) -> dict[str, Any]:
    absolute = np.abs([error for _, error in errors])
    source, commit = ("neusight", "NeuSight 6945927d") if rows.eager else ("vidur", "Vidur 7d475133")
    if rows.cases[0].kernel == "quantize":
        source, commit = "aiconfigurator", "aiconfigurator 095f58a5"
    sizes = [c.work.nbytes for c in rows.cases]
    ops = ", ".join(sorted({c.op for c in rows.cases}))
    return {
        "parameters": {name: float(f"{value:.4g}") for name, value in constants.items()},
        "rows": f"{len(rows.cases)} rows of {commit}: {ops}",
        "range": f"{min(sizes)} to {max(sizes)} bytes moved",
        "median_error": round(float(np.median(absolute)), 4),
        "p90_error": round(float(np.percentile(absolute, 90)), 4),
        "source": source,
        "basis": "fitted",
    }


def report(rows: Iterable[Mapping[str, str]], tables: Mapping[str, Any]) -> list[str]:
    """Held-out errors of each op over all devices, and of each device over all ops."""
    pooled: dict[str, list[float]] = {}
    for (name, _), errors in held_out([device for device in read(rows) if device.cases]).items():
        for row, error in errors:
            for key in (row.op, name):
                pooled.setdefault(key, []).append(abs(error))
    return [
        f"{name}: {len(errors)} rows, median {np.median(errors):.1%}, p90 {np.percentile(errors, 90):.1%}"
        for name, errors in sorted(pooled.items())
    ]
