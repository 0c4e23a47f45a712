"""Answers as plain text, 100 columns wide."""

from __future__ import annotations

from collections.abc import Sequence

from torchperf.graph.estimate import Estimate
from torchperf.graph.inspection import Inspection, MfuReport
from torchperf.graph.system import Accelerator, System

from . import estimate, hardware, inspection, mfu, models
from .record import Hardware
from .section import text


def estimate_table(e: Estimate) -> str:
    """The report of an estimate, about 70 lines; long lists are cut and say so."""
    return text(estimate.sections(e))


def inspection_table(i: Inspection) -> str:
    """What a model is, by module."""
    return text(inspection.sections(i))


def mfu_table(r: MfuReport) -> str:
    """Utilisation of a measured run in each convention, and its cost."""
    return text(mfu.sections(r))


def hardware_table(record: Hardware) -> str:
    """One hardware record, each value with its reference."""
    return text(hardware.sections(record))


def hardware_list_table(accelerators: Sequence[Accelerator], systems: Sequence[System]) -> str:
    """The accelerators and systems of the database."""
    return text([hardware.accelerators(accelerators), hardware.systems(systems)])


def models_table(rows: Sequence[tuple[str, int, str, str]]) -> str:
    """The bundled configs: (name, parameters, source, note) each."""
    return text([models.table(rows)])
