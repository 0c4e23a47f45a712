"""How the cases ask: the command line's JSON, and FLOPs of a small module."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

import torchperf
from torchperf.graph.estimate import Flops


@pytest.fixture
def measured(command) -> Callable[..., dict[str, Any]]:
    """`measured("llama-3.1-8b", "--gpu", ...)`: the JSON of `torchperf mfu`."""

    def ask(*args: object) -> dict[str, Any]:
        result = command("mfu", *args, "--json", "-")
        assert (result.exit_code, result.stderr) == (0, "")
        return json.loads(result.stdout)

    return ask


@pytest.fixture
def priced(command) -> Callable[..., dict[str, Any]]:
    """`priced("llama-3-70b", "--gpu", ...)`: the JSON of `torchperf estimate`; its exit code tells whether it fits."""

    def ask(*args: object) -> dict[str, Any]:
        result = command("estimate", *args, "--json", "-")
        answer: dict[str, Any] = json.loads(result.stdout)
        assert (result.exit_code, result.stderr) == (int(answer["verdict"] == "does not fit"), "")
        return answer

    return ask


@pytest.fixture
def row() -> Callable[[dict[str, Any], str], dict[str, Any]]:
    """The row of an `mfu` answer whose convention starts so."""

    def find(answer: dict[str, Any], convention: str) -> dict[str, Any]:
        (found,) = (r for r in answer["mfu"] if r["convention"].startswith(convention))
        return found

    return find


@pytest.fixture
def flops() -> Callable[..., Flops]:
    """Non-causal FLOPs of a module or model on these inputs."""

    def count(model: Any, inputs: Any = None, *, seq_len: int | None = None, **how: Any) -> Flops:
        capture = torchperf.capture(model, inputs, micro_batch=how.pop("micro_batch", None), seq_len=seq_len)
        return torchperf.estimate(capture, gpu="h100-sxm-80gb", seq_len=seq_len, strict=True, **how).flops_noncausal

    return count
