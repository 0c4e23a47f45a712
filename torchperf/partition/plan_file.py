"""The plan that the user chose: inferred, the model's own, or a TOML or JSON file.

[tp_plan]
"model.layers.*.self_attn.q_proj" = "colwise"
"model.layers.*.self_attn.o_proj" = "rowwise"
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..graph import toml_text
from ..graph.errors import TorchperfError
from ..graph.graph import Graph
from .plan_styles import STYLES, check, matches, parameter_names

TABLE = "tp_plan"


def plan_of(graph: Graph, text: str) -> Mapping[str, str] | None:
    """Nothing -> None (inferred); "hf" -> the plan that the model brings; else the file of that name.

    Raises TorchperfError: a model without a plan, a file that cannot be read or does not fit the model.
    """
    if not text:
        return None
    if text == "hf":
        return own_plan(graph)
    plan = read_plan(Path(text))
    check(graph, plan, text)
    return plan


def own_plan(graph: Graph) -> dict[str, str]:
    """The model's own plan, less what it says of modules that this size of it has not."""
    if not graph.facts.tp_plan:
        raise TorchperfError(
            f"`{graph.facts.model}` brings no tensor-parallel plan",
            facts=[("class", graph.facts.model_class)],
            hint="leave out `--tp-plan` to have one inferred, or give a file",
        )
    names = [name for every in parameter_names(graph).values() for name in every]
    plan = {p: style for p, style in graph.facts.tp_plan if any(matches(p, name) for name in names)}
    check(graph, plan, f"base_model_tp_plan of {graph.facts.model_class}")
    return plan


def read_plan(path: Path) -> dict[str, str]:
    """Module or parameter -> style, as the file says; raises TorchperfError naming file and key."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise TorchperfError(
            f"cannot read `{path}`",
            facts=[("reason", error.strerror or str(error))],
            hint="`--tp-plan` takes `hf` or a file",
        ) from None
    contents: Any = toml_text.parsed(data, str(path), "JSON" if path.suffix == ".json" else "TOML")
    if not isinstance(contents, dict) or not isinstance(contents.get(TABLE), dict):
        raise TorchperfError(f"`{path}` has no table `{TABLE}`", hint=f"begin the plan with `[{TABLE}]`")
    faults = [(key, "is no part of a plan") for key in contents if key != TABLE]
    table = contents[TABLE]
    faults += [
        (f"{TABLE}.{key}", f"{style} is no style; one of {', '.join(sorted(STYLES)[:4])}, ...")
        for key, style in table.items()
        if not isinstance(style, str)
    ]
    if not table:
        faults.append((TABLE, "is empty"))
    if faults:
        raise TorchperfError(f"`{path}` is not a plan", facts=faults, hint='write `"MODULE" = "STYLE"` lines')
    return dict(table)
