"""The table of what scripts/coverage.py found, in markdown."""

from __future__ import annotations

from typing import Any

Record = dict[str, Any]


def told(stage: Record) -> str:
    """One stage in a word or two."""
    return f"ok {stage['seconds']:.1f} s" if stage["ok"] else f"{stage['class']}: {stage['message'][:150]}"


def table(known: dict[str, Record]) -> str:
    """Markdown, a row a model."""
    head = (
        "model type", "train", "prefill", "decode", "TP share (padded)", "ops", "s", "bytes ruled", "FLOPs ruled",
        "no rule", "experts", "guesses", "assumptions",
    )  # fmt: skip
    rows = [head, ("---",) * len(head)]
    for kind, record in known.items():
        train = record.get("train", {})
        tp = record.get("tp", {})
        rows.append((
            kind, *(_cell(record.get(mode)) for mode in ("train", "prefill", "decode")),
            _split_cell(tp), str(train.get("ops", "")), str(train.get("seconds", "")),
            f"{train['bytes_ruled']:.4f}" if "bytes_ruled" in train else "",
            {True: "all", False: "not all"}.get(train.get("flops_ruled"), ""),
            ", ".join(train.get("unruled", ())),
            _experts_cell(train.get("experts") or {}),
            "; ".join(train.get("guesses", ())), "; ".join(train.get("assumptions", ())),
        ))  # fmt: skip
    cells = [[str(cell).replace("|", "\\|").replace("\n", " ") for cell in row] for row in rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in cells)


def _experts_cell(routed: Record) -> str:
    if not routed or (routed["right"] and not routed["lost"]):
        return "top-k" if routed else ""
    return f"rows {routed['rows']}, top-k {routed['top_k']}, parameters lost {routed['lost']}"


def _cell(stage: Record | None) -> str:
    if stage is None:
        return ""
    return "ok" if stage["ok"] else f"{stage['class']}: {stage['message'][:100]}"


def _split_cell(tp: Record) -> str:
    if "share" not in tp:
        return str(tp.get("message", ""))
    padded = f" ({tp['padded']:.3f})" if tp.get("padded", tp["share"]) != tp["share"] else ""
    return f"{tp['share']:.3f}{padded}{'' if tp['ok'] else ' no'}"
