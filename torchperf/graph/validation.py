"""Measured beside predicted: what `validate` returns. Seconds and bytes; an error is predicted / measured - 1."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Checked:
    """One measured row. `id` is the row's own or its line number, `group` the cells that name GPU and dtype.

    `part` is what the summary keeps apart within a group: the phase of attention, the kind of collective.
    """

    id: str
    group: str
    metric: str  # kernel_time | step_time | memory | ttft | tpot | latency | throughput
    unit: str
    measured: float
    predicted: float
    yardstick: float | None = None  # what a plain roofline gives
    part: str = ""

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1.0


@dataclass(frozen=True, slots=True)
class Skipped:
    """A row that cannot be built, and why."""

    id: str
    reason: str


@dataclass(frozen=True, slots=True)
class Spread:
    """Absolute errors of one group of rows; `yardstick_*` those of a plain roofline, None where there is none."""

    group: str
    rows: int
    median: float
    p90: float
    yardstick_median: float | None
    yardstick_p90: float | None


@dataclass(frozen=True, slots=True)
class Validation:
    """Every row of a file, those skipped, and the spread of the errors by group and over all."""

    file: str
    rows: tuple[Checked, ...]
    skipped: tuple[Skipped, ...]
    summary: tuple[Spread, ...]
