"""Recurrences along a sequence as one op: FLOPs by hand, each input read once, the states never."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from torchperf.annotate import work
from torchperf.graph.op import Op

B, D, L, N = 2, 8, 16, 4
OPERANDS: dict[str, dict[str, Any]] = {
    "selective_scan": {
        "u": (B, D, L), "delta": (B, D, L), "A": ("fp32", D, N), "B": (B, N, L), "C": (B, N, L), "D": ("fp32", D),
        "z": (B, D, L), "bias": ("fp32", D),
    },
    "wkv": {"decay": (D,), "first": (D,), "key": (B, L, D), "value": (B, L, D)},
    "gated_recurrence": {"x": (B, L, D), "gate": (B, L, D)},
}  # fmt: skip
OUTPUTS: dict[str, list[Any]] = {
    "selective_scan": [(B, D, L), ("fp32", B, D, N)],
    "wkv": [(B, L, D), *[("fp32", B, D)] * 3],
    "gated_recurrence": [(B, L, D), ("fp32", B, D)],
}
FORWARD = {"selective_scan": B * D * L * (7 * N + 3), "wkv": 23 * B * D * L, "gated_recurrence": 2 * B * D * L}
BACKWARD = {"selective_scan": 2 * B * D * L * (7 * N + 3), "wkv": 46 * B * D * L, "gated_recurrence": 3 * B * D * L}


@pytest.mark.parametrize("name", OPERANDS)
def test_forward(name: str, make: Callable[..., Op]) -> None:
    found = work(make(f"torchperf.{name}.default", OPERANDS[name], OUTPUTS[name]))
    assert (found.kind, found.engine, found.known) == ("scan", "vector", True)
    assert found.flops == found.flops_executed == FORWARD[name]
    sizes = {"selective_scan": 3 * B * D * L * 2 + 2 * B * N * L * 2 + (D * N + 2 * D) * 4,
             "wkv": 2 * B * D * L * 2 + 2 * D * 2, "gated_recurrence": 2 * B * D * L * 2}  # fmt: skip
    states = {"selective_scan": B * D * N, "wkv": 3 * B * D, "gated_recurrence": B * D}
    assert found.bytes_read == sizes[name]
    assert found.bytes_written == B * D * L * 2 + states[name] * 4


@pytest.mark.parametrize("name", OPERANDS)
def test_backward_runs_forward_again(name: str, make: Callable[..., Op]) -> None:
    operands = {"grad_out": OUTPUTS[name][0], **OPERANDS[name]}
    found = work(make(f"torchperf.{name}_backward.default", operands, list(OPERANDS[name].values())))
    assert found.flops == BACKWARD[name]
    assert found.flops_executed == BACKWARD[name] + FORWARD[name]
