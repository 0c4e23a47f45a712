"""Each bound on what a file may hold, with the message that tells of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

import torchperf
from torchperf.frontend import load, store
from torchperf.graph import check, codec, expr, toml_text
from torchperf.graph.errors import LONGEST, TorchperfError
from torchperf.graph.graph import Capture
from torchperf.partition.plan_file import read_plan


def refusal(saved: bytes, change: Callable[[dict[str, Any]], None]) -> str:
    wire = json.loads(saved)
    change(wire["graphs"][0])
    with pytest.raises(TorchperfError, match="not a whole graph") as caught:
        codec.decode(json.dumps(wire).encode(), "saved.json")
    return str(caught.value)


@pytest.mark.parametrize(
    ("bound", "what"), [("MAX_OPS", "ops, more than 3"), ("MAX_RUN", "ops to run"), ("MAX_VALUES", "operands")]
)
def test_ops_and_tensors(saved: bytes, monkeypatch: pytest.MonkeyPatch, bound: str, what: str) -> None:
    monkeypatch.setattr(check, bound, 3)
    assert what in refusal(saved, lambda graph: None)


def test_dims_of_a_tensor(saved: bytes) -> None:
    def change(graph: dict[str, Any]) -> None:
        graph["blocks"][0]["values"][0][2:4] = [[1] * 65, [1] * 65]

    assert "a tensor of 65 dims" in refusal(saved, change)


def test_storages_by_number(saved: bytes) -> None:
    def change(graph: dict[str, Any]) -> None:
        graph["segments"][0][2][0] = 10**9

    assert "1,000,000,001 storages" in refusal(saved, change)


@pytest.mark.parametrize("size", [-1, 2**63])
def test_sizes_of_dims(saved: bytes, size: int) -> None:
    def change(graph: dict[str, Any]) -> None:
        graph["blocks"][0]["values"][0][2][0] = size

    assert f"the size {size} is negative, or more than 2**63 - 1" in refusal(saved, change)


def test_depth_of_arguments(saved: bytes) -> None:
    nested: list[Any] = []
    for _ in range(20):
        nested = [nested]

    def change(graph: dict[str, Any]) -> None:
        graph["blocks"][0]["ops"][0][6]["x"] = nested

    assert "nested more than 16 deep" in refusal(saved, change)


def test_bytes_of_a_graph_file(graph_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (codec, store, load):
        monkeypatch.setattr(module, "MAX_BYTES", 1000)
    for read in (torchperf.load, lambda path: load.resolve(str(path))):
        with pytest.raises(TorchperfError, match=r"llama\.json` is too large"):
            read(graph_file)
    with pytest.raises(TorchperfError, match="not a whole graph"):
        codec.decode(graph_file.read_bytes())


def test_bytes_and_depth_of_a_toml_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "plan.toml"
    file.write_text("x = " + "[" * 5000 + "]" * 5000)
    with pytest.raises(TorchperfError, match="is not TOML: nested too deep"):
        read_plan(file)
    monkeypatch.setattr(toml_text, "MAX_BYTES", 1000)
    with pytest.raises(TorchperfError, match=r"is too large: 10,004 bytes, more than 1,000"):
        read_plan(file)


@pytest.mark.parametrize(
    "text", ["2**2**99", "seq**99", "(" * 500 + "seq" + ")" * 500, "seq*" * 400 + "seq", "ceil(ceil(seq, 2), 2)"]
)
def test_expressions_do_not_blow_up(text: str) -> None:
    with pytest.raises(TorchperfError):
        expr.parse(text)


def test_a_product_past_64_bits() -> None:
    dim = expr.parse("*".join(["seq"] * 100))
    with pytest.raises(TorchperfError, match=r"more than 2\*\*63 - 1"):
        expr.bind_dim(dim, {"seq": 1000})


def test_a_tensor_past_64_bits(one_layer: Callable[[], Capture]) -> None:
    with pytest.raises(TorchperfError, match=r"more than 2\*\*63 - 1"):
        one_layer().bind(batch=2**62)


def test_runs_of_a_pipeline(one_layer: Callable[[], Capture]) -> None:
    with pytest.raises(TorchperfError, match="runs of a stage, more than"):
        torchperf.estimate(one_layer(), gpu="h100-sxm-80gb", global_batch=10**18, micro_batch=2)


def test_a_message_is_one_line_of_bounded_length() -> None:
    error = TorchperfError("`a\n\x1b[31mb`" + "x" * 10**5)
    assert error.message.startswith("`a\\n\\x1b[31mb`")
    assert len(error.message) == LONGEST


def test_a_name_no_file_can_have(command: Callable[..., Result]) -> None:
    found = command("estimate", "x" * 5000, "--gpu", "h100-sxm-80gb")
    assert found.exit_code == 2
    assert found.stderr.startswith("error: no model is named `xxx")
