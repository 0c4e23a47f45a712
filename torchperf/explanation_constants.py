"""Which constants an explanation reads: keys of records -> values and fits with their references."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields

from .graph.explanation import Constant, Line
from .graph.runtime import Runtime
from .graph.system import Fit, Fitted, Sourced, System
from .report.record import Hardware, groups


def constants(lines: Iterable[Line], system: System, runtime: Runtime) -> tuple[Constant, ...]:
    """Every constant that the lines name, in the order of their keys."""
    known = _known(system, runtime)
    named = {key for root in lines for line in root.walk() for key in line.records}
    return tuple(known[key] for key in sorted(named))


def _known(system: System, runtime: Runtime) -> dict[str, Constant]:
    """The device's under their own keys; those of links and runtime under `name: key`."""
    device = system.accelerator
    found = _of(device, "", device.file) | _of(runtime, f"{runtime.name}: ", runtime.file)
    for link in (system.scale_up, system.scale_out, system.host_link):
        if link is not None:
            found |= _of(link, f"{link.name}: ", link.file)
    serving = runtime.serving
    if serving is not None:
        for field in fields(serving):
            value = getattr(serving, field.name)
            key = f"{runtime.name}: serving.{field.name}"
            if isinstance(value, Sourced):
                found[key] = _sourced(key, value, runtime.file)
            elif isinstance(value, Fit):
                found[key] = _fit(key, value, runtime.file)
    return found


def _of(record: Hardware, prefix: str, file: str) -> dict[str, Constant]:
    own = next(rows for link, _, rows in groups(record) if not link)
    found = {prefix + key: _sourced(prefix + key, value, file) for key, value in own}
    if isinstance(record, Fitted):
        found |= {prefix + fit.name: _fit(prefix + fit.name, fit, file) for fit in record.fits}
    return found


def _sourced(key: str, s: Sourced, file: str) -> Constant:
    return Constant(key, s.value, s.unit, s.basis, s.source, file, s.condition)


def _fit(key: str, fit: Fit, file: str) -> Constant:
    return Constant(
        key, None, "", fit.basis, fit.source, fit.file or file, fit.range, fit.rows, fit.median_error, fit.p90_error
    )
