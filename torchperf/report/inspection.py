"""Inspection -> the sections of its report."""

from __future__ import annotations

from torchperf.graph.inspection import Inspection

from . import units
from .estimate import LISTED, bullets
from .section import Section


def sections(i: Inspection) -> list[Section]:
    """Parameters, FLOPs, bytes and activations by module."""
    sizes = ", ".join(f"{name} {units.count(size)}" for name, size in i.sizes)
    trained = "" if i.trainable_parameters == i.parameters else f", {units.count(i.trainable_parameters)} trained"
    return [
        Section(
            "",
            lines=(
                ", ".join(part for part in (f"{i.model} ({i.model_class}): {i.mode}", sizes) if part),
                f"{units.count(i.parameters)} parameters{trained}",
            ),
        ),
        modules(i),
        bullets("assumptions", i.assumptions, LISTED),
        bullets("guesses", i.guesses, LISTED),
    ]


def modules(i: Inspection) -> Section:
    """A row a module; the counts of a folded layer are those of all its calls together."""
    train = i.mode == "train"
    headers = ("calls", "parameters", "FLOP forward", *(("backward",) if train else ()), "bytes moved")
    rows = []
    for row in i.rows:
        cells = [
            row.module or "(whole model)",
            units.count(row.calls),
            units.count(row.parameters),
            _flop(row.flops_forward),
        ]
        if train:
            cells.append(_flop(row.flops_backward))
        cells.append(units.size(row.nbytes))
        if train:
            cells.append(units.size(row.activation_bytes))
        rows.append(tuple(cells))
    if train:
        headers = (*headers, "activations")
    return Section("module", headers, tuple(rows), right=tuple(range(1, 1 + len(headers))), flexible=(0,))


def _flop(flops: int) -> str:
    return units.si(flops, "FLOP").removesuffix("FLOP").strip() if flops else "0"
