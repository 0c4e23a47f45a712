"""A validation of inference runs -> table: every row, then the errors by source, GPU, model and runtime."""

from __future__ import annotations

from collections.abc import Mapping

from ..graph.validation import Checked, Validation
from .measured_runs import runs_table


def inference_table(answer: Validation, specs: Mapping[str, str], settings: Mapping[str, str]) -> str:
    """`specs` and `settings`: by id, how much of a row is guessed, and its model, devices and runtime in words."""
    rows = [
        [row.id, specs.get(row.id, ""), row.metric, *_figures(row), settings.get(row.id, "")] for row in answer.rows
    ]
    head = ["run", "spec", "metric", "measured", "ours", "error", "of"]
    return runs_table(answer, rows, head, ("left", "left", "left", *["right"] * 3, "left"))


def _figures(row: Checked) -> list[str]:
    if row.metric == "throughput":
        return [f"{row.measured:,.1f}/s", f"{row.predicted:,.1f}/s", f"{row.error:+.1%}"]
    return [f"{row.measured * 1e3:,.2f} ms", f"{row.predicted * 1e3:,.2f} ms", f"{row.error:+.1%}"]
