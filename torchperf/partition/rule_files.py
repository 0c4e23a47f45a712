"""Every file of factor rules: importing one enters its rules in the table that `find` looks into."""

from __future__ import annotations

from . import (
    rules_attention,
    rules_collective,
    rules_index,
    rules_matmul,
    rules_pointwise,
    rules_reduction,
    rules_scan,
    rules_strided,
    rules_view,
)
from .rules import base_name, find

__all__ = ["base_name", "find"]

RULE_FILES = (
    rules_view,
    rules_strided,
    rules_matmul,
    rules_attention,
    rules_pointwise,
    rules_reduction,
    rules_index,
    rules_scan,
    rules_collective,
)
