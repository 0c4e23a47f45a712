"""A validation of training runs -> table: every row, then the errors by source, spec, GPU and model."""

from __future__ import annotations

from collections.abc import Mapping

from ..graph.validation import Checked, Validation
from .measured_runs import runs_table


def training_table(answer: Validation, specs: Mapping[str, str], settings: Mapping[str, str]) -> str:
    """`specs` and `settings`: by id, how much of a row is guessed, and its model, plan and runtime in words."""
    by_id: dict[str, dict[str, Checked]] = {}
    for row in answer.rows:
        by_id.setdefault(row.id, {})[row.metric] = row
    rows = [
        [id, specs.get(id, ""), *_seconds(found.get("step_time")), *_gib(found.get("memory")), settings.get(id, "")]
        for id, found in by_id.items()
    ]
    head = ["run", "spec", "step s", "ours", "error", "GiB", "ours", "error", "of"]
    return runs_table(answer, rows, head, ("left", "left", *["right"] * 6, "left"))


def _seconds(row: Checked | None) -> list[str]:
    return ["", "", ""] if row is None else [f"{row.measured:.3f}", f"{row.predicted:.3f}", f"{row.error:+.1%}"]


def _gib(row: Checked | None) -> list[str]:
    if row is None:
        return ["", "", ""]
    return [f"{row.measured / 2**30:.1f}", f"{row.predicted / 2**30:.1f}", f"{row.error:+.1%}"]
