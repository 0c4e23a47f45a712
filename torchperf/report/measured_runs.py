"""What the reports of measured runs share: head, errors by group, what was skipped, and JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tabulate import tabulate

from ..graph.validation import Validation
from .validation import validation_dict

_NO_NUMBERS = {"tablefmt": "plain", "disable_numparse": True}


def runs_table(answer: Validation, rows: Sequence[Sequence[str]], head: Sequence[str], align: Sequence[str]) -> str:
    """The rows as made by the caller, then the errors by group, then the reasons of what was skipped."""
    lines = [f"{answer.file}: {len({r.id for r in answer.rows})} runs priced, {len(answer.skipped)} skipped", ""]
    if rows:
        lines += [tabulate(rows, headers=head, colalign=align, **_NO_NUMBERS), ""]  # type: ignore[arg-type]
        spreads = [[s.group, s.rows, f"{s.median:.1%}", f"{s.p90:.1%}"] for s in answer.summary]
        head, align = ["absolute error", "rows", "median", "p90"], ("left", *["right"] * 3)
        lines += [tabulate(spreads, headers=head, colalign=align, **_NO_NUMBERS)]  # type: ignore[arg-type]
    reasons: dict[str, list[str]] = {}
    for skipped in answer.skipped:
        reasons.setdefault(skipped.reason, []).append(skipped.id)
    if reasons:
        lines += ["", "skipped"]
        lines += [f"- {len(ids)} ({', '.join(ids[:4])}{', ...' if len(ids) > 4 else ''}): {why}"
                  for why, ids in reasons.items()]  # fmt: skip
    return "\n".join(lines) + "\n"


def runs_dict(
    answer: Validation, specs: Mapping[str, str], assumptions: Mapping[str, tuple[str, ...]]
) -> dict[str, Any]:
    """As every validation, with `spec` and what was assumed on each row."""
    found = validation_dict(answer)
    for row in found["rows"]:
        row["spec"] = specs.get(row["id"], "")
        row["assumptions"] = list(assumptions.get(row["id"], ()))
    return found
