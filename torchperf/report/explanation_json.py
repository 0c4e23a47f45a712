"""Explanation as JSON and back."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from torchperf.graph.errors import TorchperfError
from torchperf.graph.explanation import Constant, Explanation, Line

KEY = "explanation"


def explanation_dict(e: Explanation) -> dict[str, Any]:
    """Lines under lines; what a line leaves open is left out. `unit` is that of `value`."""
    return {"lines": [_line(line) for line in e.lines], "constants": [asdict(c) for c in e.constants]}


def _line(line: Line) -> dict[str, Any]:
    found: dict[str, Any] = {"name": line.name, "value": line.value, "unit": line.unit}
    if line.factor != 1.0:
        found["factor"] = line.factor
    if line.formula:
        found["formula"] = line.formula
    if line.inputs:
        found["inputs"] = dict(line.inputs)
    if line.records:
        found["constants"] = list(line.records)
    if line.note:
        found["note"] = line.note
    for key, lines in (("lines", line.lines), ("behind", line.behind)):
        if lines:
            found[key] = [_line(one) for one in lines]
    return found


def explanation_of(answer: object, file: str) -> Explanation:
    """The explanation inside a saved answer; raises TorchperfError where there is none, or none that reads."""
    hint = "save one with `torchperf estimate MODEL ... --json FILE`"
    if not isinstance(answer, dict) or KEY not in answer:
        raise TorchperfError(f"`{file}` holds no explanation", hint=hint)
    try:
        found = answer[KEY]
        constants = tuple(Constant(**one) for one in found["constants"])
        return Explanation(tuple(_read(one) for one in found["lines"]), constants)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise TorchperfError(
            f"`{file}` holds an explanation that does not read",
            facts=[("reason", f"{type(error).__name__}: {error}")],
            hint=hint,
        ) from None


def _read(one: dict[str, Any]) -> Line:
    return Line(
        str(one["name"]), float(one["value"]), str(one["unit"]), tuple(_read(line) for line in one.get("lines", ())),
        float(one.get("factor", 1.0)), str(one.get("formula", "")),
        tuple((str(name), float(number)) for name, number in one.get("inputs", {}).items()),
        tuple(str(key) for key in one.get("constants", ())), str(one.get("note", "")),
        tuple(_read(line) for line in one.get("behind", ())),
    )  # fmt: skip
