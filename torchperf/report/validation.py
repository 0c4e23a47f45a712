"""Validation -> table and JSON."""

from __future__ import annotations

from typing import Any

from tabulate import tabulate

from ..graph.validation import Checked, Spread, Validation

WORST = 8


def validation_table(answer: Validation) -> str:
    """Errors by group, the worst rows, and what was skipped with its reasons."""
    if not answer.rows:
        lines = [f"{answer.file}: no row could be priced"]
    else:
        table = [
            [s.group, s.rows, _pair(s.median, s.p90), _pair(s.yardstick_median, s.yardstick_p90)]
            for s in answer.summary
        ]
        head = ["rows of", "rows", "median / p90 error", "plain roofline"]
        lines = [f"{answer.file}: {len(answer.rows)} rows priced, {len(answer.skipped)} skipped", ""]
        lines.append(
            tabulate(table, headers=head, tablefmt="plain", disable_numparse=True, colalign=("left", *["right"] * 3))
        )
        worst = sorted(answer.rows, key=lambda row: -abs(row.error))[:WORST]
        shown = [[r.id, r.group, _amount(r, r.measured), _amount(r, r.predicted), f"{r.error:+.1%}"] for r in worst]
        head = ["worst rows", "of", "measured", "predicted", "error"]
        lines += [
            "",
            tabulate(
                shown, headers=head, tablefmt="plain", disable_numparse=True, colalign=("left", "left", *["right"] * 3)
            ),
        ]
    reasons: dict[str, list[str]] = {}
    for row in answer.skipped:
        reasons.setdefault(row.reason, []).append(row.id)
    if reasons:
        lines += ["", "skipped"]
        lines += [
            f"- {len(ids)} rows ({', '.join(ids[:4])}{', ...' if len(ids) > 4 else ''}): {why}"
            for why, ids in reasons.items()
        ]
    return "\n".join(lines) + "\n"


def _pair(median: float | None, p90: float | None) -> str:
    return "-" if median is None or p90 is None else f"{median:6.1%} / {p90:6.1%}"


def _amount(row: Checked, value: float) -> str:
    if row.unit == "B":
        return f"{value / 2**30:.2f} GiB"
    return f"{value * 1e6:,.1f} us" if value < 1e-2 else f"{value:,.3f} s"


def validation_dict(answer: Validation) -> dict[str, Any]:
    """Rows, skipped rows and summary, as design.md's last section has it."""
    return {
        "file": answer.file,
        "rows": [
            {
                "id": r.id,
                "group": r.group,
                "metric": r.metric,
                "unit": r.unit,
                "measured": r.measured,
                "predicted": r.predicted,
                "error": r.error,
            }
            for r in answer.rows
        ],
        "skipped": [{"id": r.id, "reason": r.reason} for r in answer.skipped],
        "summary": [_spread(s) for s in answer.summary],
    }


def _spread(s: Spread) -> dict[str, Any]:
    return {
        "group": s.group,
        "rows": s.rows,
        "median_error": s.median,
        "p90_error": s.p90,
        "roofline_median_error": s.yardstick_median,
        "roofline_p90_error": s.yardstick_p90,
    }
