"""A validation of inference runs -> table and JSON: every row, then the errors by source, GPU, model and runtime."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tabulate import tabulate

from ..graph.validation import Checked, Validation
from .validation import validation_dict

_NO_NUMBERS = {"tablefmt": "plain", "disable_numparse": True}


def inference_table(answer: Validation, specs: Mapping[str, str], settings: Mapping[str, str]) -> str:
    """`specs` and `settings`: by id, how much of a row is guessed, and its model, devices and runtime in words."""
    lines = [f"{answer.file}: {len({r.id for r in answer.rows})} runs priced, {len(answer.skipped)} skipped", ""]
    if answer.rows:
        table = [
            [row.id, specs.get(row.id, ""), row.metric, *_figures(row), settings.get(row.id, "")] for row in answer.rows
        ]
        head = ["run", "spec", "metric", "measured", "ours", "error", "of"]
        align = ("left", "left", "left", *["right"] * 3, "left")
        lines += [tabulate(table, headers=head, colalign=align, **_NO_NUMBERS), ""]  # type: ignore[arg-type]
        spreads = [[s.group, s.rows, f"{s.median:.1%}", f"{s.p90:.1%}"] for s in answer.summary]
        head = ["absolute error", "rows", "median", "p90"]
        align = ("left", *["right"] * 3)
        lines += [tabulate(spreads, headers=head, colalign=align, **_NO_NUMBERS)]  # type: ignore[arg-type]
    reasons: dict[str, list[str]] = {}
    for skipped in answer.skipped:
        reasons.setdefault(skipped.reason, []).append(skipped.id)
    if reasons:
        lines += ["", "skipped"]
        lines += [f"- {len(ids)} ({', '.join(ids[:4])}{', ...' if len(ids) > 4 else ''}): {why}"
                  for why, ids in reasons.items()]  # fmt: skip
    return "\n".join(lines) + "\n"


def inference_dict(
    answer: Validation, specs: Mapping[str, str], assumptions: Mapping[str, tuple[str, ...]]
) -> dict[str, Any]:
    """As every validation, with `spec` and what was assumed on each row."""
    found = validation_dict(answer)
    for row in found["rows"]:
        row["spec"] = specs.get(row["id"], "")
        row["assumptions"] = list(assumptions.get(row["id"], ()))
    return found


def _figures(row: Checked) -> list[str]:
    if row.metric == "throughput":
        return [f"{row.measured:,.1f}/s", f"{row.predicted:,.1f}/s", f"{row.error:+.1%}"]
    return [f"{row.measured * 1e3:,.2f} ms", f"{row.predicted * 1e3:,.2f} ms", f"{row.error:+.1%}"]
