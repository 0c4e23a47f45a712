"""A runner, and stand-ins for the rooms behind the command line that remember how they were called."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from click.testing import CliRunner, Result

import torchperf
from torchperf.cli import main
from torchperf.graph.estimate import Estimate, Flops, Memory
from torchperf.graph.explanation import Explanation, Line
from torchperf.graph.graph import Capture, Facts, Graph
from torchperf.graph.inspection import Inspection, MfuReport

Run = Callable[..., Result]
EXPLANATION = Explanation((Line("step time", 0.5, "s", (Line("forward", 0.5, "s"),)),), ())
GIB = 2**30


@pytest.fixture
def run() -> Run:
    """`run("estimate", "gpt2", ...)` -> the result, with stdout, stderr and exit code apart."""

    def invoke(*args: str) -> Result:
        return CliRunner().invoke(main, args, prog_name="torchperf")

    return invoke


@pytest.fixture
def estimate() -> Estimate:
    memory = Memory(GIB, 0, 0, 0, GIB, 0, 0, GIB, 2 * GIB, 8 * GIB)
    flops = Flops(10**12, 2 * 10**12, 0)
    return Estimate(
        model="tiny", mode="train", gpu="t4", num_gpus=1, sizes=(("batch", 1), ("seq", 128)),
        precision="bf16-mixed", optimizer="adamw", recompute="none", runtime="eager",
        parameters=1000, trainable_parameters=1000, verdict="fits", memory=memory,
        step_time_s=0.5, device_time_s=0.5, host_time_s=0.1, phase_time_s=(("forward", 0.5),),
        roofline_time_s=0.25, tokens_per_step=128, tokens_per_s=256.0, samples_per_s=2.0,
        flops=flops, flops_noncausal=flops, peak_flops_per_s=65e12, mfu=(), hfu=(),
        by_kind=(), by_module=(), by_bound=(), top_kernels=(),
    )  # fmt: skip


class Calls:
    """What stands in for a module: each function returns or raises its answer, and keeps its arguments."""

    def __init__(self, **answers: Any) -> None:
        self.answers = answers
        self.seen: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    def function(self, name: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self.seen.append((name, args, kwargs))
            answer = self.answers[name]
            if isinstance(answer, BaseException):
                raise answer
            return answer

        return call


@pytest.fixture
def pipeline(monkeypatch: pytest.MonkeyPatch, estimate: Estimate) -> Calls:
    inspection = Inspection("tiny", "Tiny", "train", (("batch", 1),), 1000, 1000, ())
    report = MfuReport("tiny", "t4", 1, "fp16-mixed", 1000, 0, 128, 256.0, 65e12, ())
    calls = Calls(estimate=estimate, inspect=inspection, mfu=report)
    functions = {
        ("pipeline", "estimated"): lambda *args, **kwargs: (calls.function("estimate")(*args, **kwargs), None),
        ("inspection", "inspect"): calls.function("inspect"),
        ("measured_run", "mfu"): calls.function("mfu"),
        ("explanation", "explain"): lambda *args: EXPLANATION,
    }
    for (place, name), function in functions.items():
        module = ModuleType(f"torchperf.{place}")
        setattr(module, name, function)
        monkeypatch.setitem(sys.modules, f"torchperf.{place}", module)
        monkeypatch.setattr(torchperf, place, module, raising=False)
    return calls


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """What `torchperf.frontend.load.load` returns."""
    graph = Graph(
        Facts(
            "tiny",
            "Tiny",
            "train",
            sizes=(("batch", 1),),
            ranges=(("batch", 1, -1, 0),),
            guesses=("`mask.all()` taken as true",),
        ),
        (),
        (),
    )
    module = ModuleType("torchperf.frontend.load")
    calls = Calls(load=(Capture((graph,)), graph))
    module.load = calls.function("load")  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torchperf.frontend.load", module)
    return calls
