"""The table of factor rules by operator: `aten.mm.default` is looked up as `mm`. An op that is not there is unknown."""

from __future__ import annotations

from collections.abc import Callable

from .step import Rule

RULES: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Enter a rule for these operators; entering one twice is a mistake."""

    def enter(function: Rule) -> Rule:
        for name in names:
            assert name not in RULES, name
            RULES[name] = function
        return function

    return enter


def base_name(name: str) -> str:
    """`aten.add_.Tensor` -> `add_`, `torchperf.attention.default` -> `attention`."""
    return name.split(".")[1] if "." in name else name


def find(name: str) -> Rule | None:
    """The rule of an op, or None."""
    return RULES.get(base_name(name))
