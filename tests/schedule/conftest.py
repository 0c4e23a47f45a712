"""Small programs of a few layers, and the works of their ops."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from torchperf.graph.graph import Graph
from torchperf.graph.work import Works
from torchperf.hardware import load_runtime
from torchperf.pipeline import annotated, lower


@pytest.fixture
def program(shallow) -> Callable[..., tuple[Graph, Works]]:
    """`program("llama", seq=256, recompute="full")`: the lowered program and its works."""

    def make(
        name: str, *, batch: int = 2, seq: int = 256, precision: str = "bf16-mixed", recompute: str = "none",
        attention: str = "auto", runtime: str = "eager", optimizer: str | None = None,
    ) -> tuple[Graph, Works]:  # fmt: skip
        graph = shallow(name).bind(batch=batch, seq=seq)
        lowered = lower(graph, precision, optimizer, recompute, attention, load_runtime(runtime))
        return lowered, annotated(lowered)

    return make
