"""`torchperf estimate --mode inference`: its report and JSON on a small model, and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

KEYS = {
    "ttft_s", "tpot_s", "latency_s", "tokens_per_s_per_gpu", "kv_bytes_per_token", "max_concurrency", "max_context",
    "verdict", "prefill_operators", "decode_operators", "definitions", "assumptions",
}  # fmt: skip
MODEL = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 1024, "hidden_size": 512,
    "intermediate_size": 1024, "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 4,
    "head_dim": 64, "max_position_embeddings": 2048,
}  # fmt: skip
SIZES = ("--input-len", 200, "--output-len", 20)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("small") / "llama"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(MODEL), encoding="utf-8")
    return str(folder)


@pytest.fixture
def ask(command: Callable[..., Result], model: str) -> Callable[..., Result]:
    def asked(*args: object) -> Result:
        return command("estimate", model, "--gpu", "h100-sxm-80gb", "--mode", "inference", *args)

    return asked


def answer(result: Result) -> dict[str, Any]:
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


@pytest.mark.parametrize(
    "how",
    [
        ("--batch", 4), ("--concurrency", 8), ("--request-rate", 5), ("--concurrency", 8, "--disaggregated", "1:2"),
        ("--precision", "fp8", "--kv-precision", "fp8", "--tp", 2), ("--prefix-hit", 0.5), ("--speculative", "3:0.7"),
        ("--pp", 2, "--runtime", "tensorrt-llm"), ("--num-gpus", 4, "--tp", 2), ("--runtime", "transformers-eager"),
    ],
)  # fmt: skip
def test_json(ask: Callable[..., Result], how: tuple[object, ...]) -> None:
    found = answer(ask(*SIZES, *how, "--json", "-"))
    assert found.keys() >= KEYS
    assert found["tpot_s"] > 0
    assert 0 < found["ttft_s"] < found["latency_s"]
    assert found["latency_s"] == pytest.approx(found["ttft_s"] + 19 * found["tpot_s"])
    assert found["kv_bytes_per_token"] == 2 * 2 * 4 * 64 * (1 if "fp8" in how else 2)
    assert {op["bound"] for op in found["decode_operators"]} <= {"compute", "hbm", "l2", "launch", "network"}
    parts = sum(found["decode_parts_s"].values())
    assert parts == pytest.approx(found["decode_mean_s"], rel=1e-6)


def test_replicas_share_the_requests(ask: Callable[..., Result]) -> None:
    one, four = (answer(ask(*SIZES, "--concurrency", n, "--num-gpus", n // 8, "--json", "-")) for n in (8, 32))
    assert four["tokens_per_s_per_gpu"] == pytest.approx(one["tokens_per_s_per_gpu"])
    assert four["num_gpus"] == 4


def test_report(ask: Callable[..., Result], tmp_path: Path) -> None:
    result = ask(*SIZES, "--concurrency", 8, "--json", tmp_path / "answer.json")
    assert result.exit_code == 0
    for word in ("TTFT", "closed form", "by events", "max context", "definitions", "bound by", "B a token"):
        assert word in result.stdout
    assert max(len(line) for line in result.stdout.splitlines()) <= 100
    assert json.loads((tmp_path / "answer.json").read_text())["verdict"] == "fits"
    assert ask(*SIZES, "--markdown").stdout.count("|") > 50


REFUSED = {
    "`--input-len`": (),
    "`--output-len`": ("--input-len", 200),
    "has positions for": ("--input-len", 2000, "--output-len", 200),
    "give one": (*SIZES, "--concurrency", 4, "--request-rate", 2),
    "of a static batch": (*SIZES, "--concurrency", 4, "--batch", 2),
    "needs the requests at a time": (*SIZES, "--disaggregated", "1:1"),
    "less than a request": (*SIZES, "--max-model-len", 100),
    "does not say how it serves": (*SIZES, "--runtime", "eager"),
    "is of training": (*SIZES, "--precision", "bf16-mixed"),
    "unknown weights": (*SIZES, "--precision", "int3"),
    "unknown kv": (*SIZES, "--kv-precision", "fp4"),
    "no kernel multiplies": (*SIZES, "--precision", "fp8", "--activation-precision", "int8"),
    "`--zero` has no meaning": (*SIZES, "--zero", "1"),
    "neither `--tp 1`": (*SIZES, "--ep", 2),
    "no experts": (*SIZES, "--tp", 2, "--ep", 2),
    "does not hold engines": (*SIZES, "--tp", 4, "--num-gpus", 6),
    "give two numbers": (*SIZES, "--speculative", "4"),
    "at most 1": (*SIZES, "--gpu-memory-utilization", "1.2"),
    "requests a second are more": (*SIZES, "--request-rate", 1e7),
}


@pytest.mark.parametrize("message", REFUSED)
def test_refused(ask: Callable[..., Result], message: str) -> None:
    result = ask(*REFUSED[message])
    assert result.exit_code == 2, result.stdout
    assert message in result.stderr
    assert "internal" not in result.stderr


def test_options_of_inference_are_of_no_other_mode(command: Callable[..., Result], model: str) -> None:
    result = command("estimate", model, "--gpu", "h100-sxm-80gb", "--batch", 4)
    assert result.exit_code == 2
    assert "`--batch` is of `--mode inference`" in result.stderr


def test_a_model_that_does_not_fit(command: Callable[..., Result]) -> None:
    result = command(
        "estimate", "llama-3.1-70b", "--gpu", "h100-sxm-80gb", "--mode", "inference", *SIZES, "--json", "-"
    )  # fmt: skip
    found = json.loads(result.stdout)
    assert (result.exit_code, found["verdict"], found["max_context"]) == (1, "does not fit", 0)
    assert found["memory_bytes"]["pool"] < 0
