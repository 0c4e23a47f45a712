"""Hardware records -> the sections of their report: each value with its reference."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torchperf.graph.runtime import Runtime
from torchperf.graph.system import Accelerator, Fit, Interconnect, Sourced, System

from . import units
from .record import Hardware, Row, groups
from .section import Section


def sections(record: Hardware) -> list[Section]:
    """Who the record is, every value with its reference, and its fits."""
    return [
        Section("", lines=tuple(facts(record))),
        *(_values(f"{key}: {name}" if key else "value", rows) for key, name, rows in groups(record)),
        _fits(record.fits if isinstance(record, (Accelerator, Interconnect)) else ()),
    ]


def _values(title: str, rows: Sequence[Row]) -> Section:
    cells = tuple(
        (key, value(s), s.basis, s.source, "; ".join(part for part in (s.scope, s.condition) if part))
        for key, s in rows
    )
    return Section(title, ("", "basis", "source", "scope; condition"), cells, right=(1,), wrapped=(4,))


def facts(record: Hardware) -> Iterator[str]:
    """The record's name, what it is, its other names and its file."""
    if isinstance(record, Accelerator):
        yield f"{record.name}: {record.vendor} {record.architecture}, {record.form_factor}, {record.year}"
    elif isinstance(record, System):
        device = record.accelerator.name
        yield f"{record.name}: {record.num_accelerators} x {device} (`torchperf hardware show {device}`)"
        links = (("scale-up", record.scale_up), ("scale-out", record.scale_out), ("host", record.host_link))
        yield "links: " + ", ".join(f"{what} {link.name}" for what, link in links if link)
    elif isinstance(record, Runtime):
        yield f"{record.name}: {record.description}"
        yield f"attention {record.attention}, pointwise chains {'' if record.fused else 'not '}fused"
        t = record.training
        yield f"training: gradients {t.gradients}, accumulation {t.accumulation}, parameters {t.parameters}"
        yield f"optimizer passes {', '.join(t.passes)}; overlapped with compute: {', '.join(t.overlap) or 'nothing'}"
    else:
        yield f"{record.name}: interconnect"
    if isinstance(record, (Accelerator, Interconnect)) and record.fits_from:
        yield f"fits it lacks: those of {', '.join(record.fits_from)}, as assumed"
    if record.aliases:
        yield f"also: {', '.join(record.aliases)}"
    yield f"file: {record.file}"


def value(s: Sourced) -> str:
    """A sourced number in the unit that people use for it."""
    if s.unit == "B":
        return units.size(s.value)
    if s.unit == "s":
        return units.seconds(s.value)
    if s.unit == "1":
        return units.plain(s.value)
    if s.unit == "Hz":
        return f"{s.value / 1e6:,.0f} MHz"
    if s.unit == "W":
        return f"{s.value:,.0f} W"
    return units.si(s.value, s.unit)


def _fits(fits: Sequence[Fit]) -> Section:
    rows = tuple(
        (f.name, ", ".join(f"{k} {v:.4g}" for k, v in f.parameters), f"{f.rows}; {f.range}",
         units.percent(f.median_error), units.percent(f.p90_error), f.basis, f.source)
        for f in fits
    )  # fmt: skip
    headers = ("parameters", "rows; range", "median error", "p90 error", "basis", "source")
    return Section("fit", headers, rows, right=(3, 4), wrapped=(0, 1, 2, 6))


def accelerators(records: Sequence[Accelerator]) -> Section:
    """A row an accelerator: memory, bandwidth, dense peaks."""
    rows = tuple(
        (a.name, str(a.year), units.size(a.memory.nominal.value), units.si(a.memory.bandwidth.value, "B/s"),
         *(_peak(a, dtype) for dtype in ("fp32", "bf16", "fp16", "fp8")))
        for a in records
    )  # fmt: skip
    headers = ("year", "memory", "bandwidth", "fp32", "bf16", "fp16", "fp8")
    lines = ("dense peaks in FLOP/s; `torchperf hardware show NAME` gives each value with its source",)
    return Section("accelerator", headers, rows, right=(1, 2, 3, 4, 5, 6, 7), lines=lines)


def systems(records: Sequence[System]) -> Section:
    """A row a system: devices per node and what joins them."""
    rows = tuple(
        (s.name, f"{s.num_accelerators} x {s.accelerator.name}", s.scale_up.name if s.scale_up else "",
         f"{s.num_nics} x {s.scale_out.name}" if s.scale_out else "")
        for s in records
    )  # fmt: skip
    return Section("system", ("devices", "inside the node", "between nodes"), rows)


def _peak(a: Accelerator, dtype: str) -> str:
    peaks = [p.flops_per_s.value for p in a.peaks if p.dtype == dtype]
    return units.si(max(peaks), "").strip() if peaks else "-"
