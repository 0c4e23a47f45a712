"""A validation of training runs -> table and JSON: every row, then the errors by source, spec, GPU and model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tabulate import tabulate

from ..graph.validation import Checked, Validation
from .validation import validation_dict

_NO_NUMBERS = {"tablefmt": "plain", "disable_numparse": True}


def training_table(answer: Validation, specs: Mapping[str, str], settings: Mapping[str, str]) -> str:
    """`specs` and `settings`: by id, how much of a row is guessed, and its model, plan and runtime in words."""
    lines = [f"{answer.file}: {len({r.id for r in answer.rows})} runs priced, {len(answer.skipped)} skipped", ""]
    by_id: dict[str, dict[str, Checked]] = {}
    for row in answer.rows:
        by_id.setdefault(row.id, {})[row.metric] = row
    if by_id:
        table = [
            [id, specs.get(id, ""), *_seconds(found.get("step_time")), *_gib(found.get("memory")), settings.get(id, "")]
            for id, found in by_id.items()
        ]
        head = ["run", "spec", "step s", "ours", "error", "GiB", "ours", "error", "of"]
        align = ("left", "left", *["right"] * 6, "left")
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


def training_dict(
    answer: Validation, specs: Mapping[str, str], assumptions: Mapping[str, tuple[str, ...]]
) -> dict[str, Any]:
    """As every validation, with `spec` and what was assumed on each row."""
    found = validation_dict(answer)
    for row in found["rows"]:
        row["spec"] = specs.get(row["id"], "")
        row["assumptions"] = list(assumptions.get(row["id"], ()))
    return found


def _seconds(row: Checked | None) -> list[str]:
    return ["", "", ""] if row is None else [f"{row.measured:.3f}", f"{row.predicted:.3f}", f"{row.error:+.1%}"]


def _gib(row: Checked | None) -> list[str]:
    if row is None:
        return ["", "", ""]
    return [f"{row.measured / 2**30:.1f}", f"{row.predicted / 2**30:.1f}", f"{row.error:+.1%}"]
