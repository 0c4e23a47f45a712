"""O24: under 1F1B stage i of p holds min(M, p - i) micro-batches: gradient accumulation needs memory, with a pipeline.

Source: DeepSpeed issues 4602, 4477, marin issue 6532.
"""

from __future__ import annotations

from typing import Any

import pytest

STAGES = 4


def ask(priced, micro_batches: int, *plan: object) -> dict[str, Any]:
    return priced(
        "llama-3.1-8b", "--gpu", "h100-sxm-80gb", *plan, "--seq-len", 4096, "--micro-batch", 1,
        "--global-batch", micro_batches, "--runtime", "megatron-core",
    )  # fmt: skip


@pytest.fixture
def pipelined(priced):
    return lambda micro_batches: ask(priced, micro_batches, "--pp", STAGES, "--schedule", "1f1b")


@pytest.mark.parametrize(
    ("micro_batches", "held"),
    [(1, [1, 1, 1, 1]), (2, [2, 2, 2, 1]), (3, [3, 3, 2, 1]), (4, [4, 3, 2, 1]), (8, [4, 3, 2, 1])],
)
def test_o24(pipelined, micro_batches: int, held: list[int]) -> None:
    """Activations of a stage are its own for one micro-batch, times those in flight (the last one may be half made)."""
    one = [stage["memory_bytes"]["activations"] for stage in pipelined(1)["stages"]]
    answer = pipelined(micro_batches)
    assert answer["plan"]["global_batch"] == micro_batches
    assert [stage["micro_batches_in_flight"] for stage in answer["stages"]] == held
    for stage, a, n in zip(answer["stages"], one, held, strict=True):
        assert stage["memory_bytes"]["activations"] == pytest.approx(n * a, rel=0.03)


def test_o24_two_need_more_than_one(pipelined) -> None:
    one, two, four, many = (pipelined(n)["memory_bytes"]["device"] for n in (1, 2, 4, 64))
    assert one < two < four == many


def test_o24_without_a_pipeline_they_do_not(priced) -> None:
    one, two, many = (ask(priced, n)["memory_bytes"] for n in (1, 2, 64))
    assert one["activations"] == two["activations"] == many["activations"]
    assert two["device"] == many["device"] <= one["device"]


def test_o24_the_report(command) -> None:
    """A row a stage, with what is in flight."""
    result = command("estimate", "llama-3.1-8b", "--gpu", "h100-sxm-80gb", "--pp", STAGES, "--global-batch", 8)
    lines = result.stdout.splitlines()
    top = next(i for i, line in enumerate(lines) if line.startswith("pipeline stage"))
    assert "in flight" in lines[top]
    assert [line.split()[:2] for line in lines[top + 1 : top + 1 + STAGES]] == [
        ["0", "4"], ["1", "3"], ["2", "2"], ["3", "1"],
    ]  # fmt: skip
