"""What an engine runs as one kernel: the same products, fewer kernels."""

from __future__ import annotations

from collections import Counter

import pytest

from torchperf import hardware
from torchperf.annotate import works
from torchperf.graph.inference import InferencePlan, InferencePrecision
from torchperf.inference_kernels import works_of
from torchperf.inference_program import local_program


def program(planner, name: str, mode: str = "decode", **plan: int):
    engine = planner(name)
    sizes = {"batch": 4, "kv": 300} if mode == "decode" else {"batch": 2, "seq": 300}
    return local_program(engine.bind(mode, sizes), InferencePlan(**plan), InferencePrecision(), engine.runtime)


def kinds(graph, rows) -> Counter[str]:
    found: Counter[str] = Counter()
    for count, row in zip(graph.counts, rows, strict=True):
        for work in row:
            found[work.kind] += count
    return found


@pytest.mark.parametrize("mode", ["decode", "prefill"])
@pytest.mark.parametrize(("name", "products"), [("dense", 4 * 4 + 1), ("experts", 4 * (2 + 1 + 2) + 1)])
def test_projections_of_one_input_are_one_product(planner, name: str, products: int, mode: str) -> None:
    """q k v, o, gate up, down and the head; with experts q k v, o, router, gate up, down."""
    graph = program(planner, name, mode)
    engine = hardware.load_runtime("vllm")
    assert kinds(graph, works_of(graph, engine))["matmul"] == products


@pytest.mark.parametrize("name", ["dense", "window", "experts", "latent"])
def test_flops_and_weights_are_kept(planner, name: str) -> None:
    """Of products; x is read once where it was read three times."""
    graph = program(planner, name)
    apart, merged = works(graph), works_of(graph, hardware.load_runtime("vllm"))

    def of(rows, part: str) -> int:
        return sum(
            n * getattr(w, part) for n, row in zip(graph.counts, rows, strict=True) for w in row if w.kind == "matmul"
        )

    assert of(merged, "flops") == of(apart, "flops")
    assert of(merged, "bytes_written") == of(apart, "bytes_written")
    assert 0.98 * of(apart, "bytes_read") < of(merged, "bytes_read") < of(apart, "bytes_read")


def test_rows_of_experts_are_not_permuted(planner) -> None:
    graph = program(planner, "experts", "prefill")
    apart, merged = kinds(graph, works(graph)), kinds(graph, works_of(graph, hardware.load_runtime("vllm")))
    assert merged["gather"] == apart["gather"] - 4 * sum(
        1 for b in graph.blocks for o, w in zip(b.ops, works(graph)[graph.blocks.index(b)], strict=True)
        if w.kind == "gather" and "experts" in o.module
    )  # fmt: skip
    assert merged["sort"] == 4 * 2  # top-k, and rows by expert
    assert merged["attention"] == apart["attention"] == 4


def test_exchanges_between_devices_stay(planner) -> None:
    graph = program(planner, "experts", ep=2, attention_dp=2)
    for rows in (works(graph), works_of(graph, hardware.load_runtime("vllm"))):
        assert kinds(graph, rows)["collective"] == 4 * 2


def test_eager_merges_nothing(planner) -> None:
    engine = planner("experts", runtime="transformers-eager")
    graph = local_program(
        engine.bind("decode", {"batch": 4, "kv": 300}), InferencePlan(), InferencePrecision(), engine.runtime
    )
    assert works_of(graph, engine.runtime) == tuple(tuple(row) for row in works(graph))
