"""How a number comes about: the tree adds up, each formula gives its value, and the saved answer is all it takes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from torchperf.explanation import explain
from torchperf.graph.explanation import Explanation, Line
from torchperf.graph.inference import InferencePlan, Request
from torchperf.inference import Load, estimate_inference
from torchperf.pipeline import estimated
from torchperf.report.explanation_json import explanation_dict, explanation_of

Run = Callable[..., Result]
SMALL = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 512, "hidden_size": 256,
    "intermediate_size": 512, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
}  # fmt: skip
H100 = {"gpu": "h100-sxm-80gb", "seq_len": 256}
PLANS: dict[str, dict[str, Any]] = {
    "one device": {"runtime": "eager"},
    "launch bound": {"runtime": "eager", "micro_batch": 1, "seq_len": 8},
    "compiled": {"runtime": "compile", "micro_batch": 8},
    "sharded": {"runtime": "fsdp-eager", "num_gpus": 8},
    "pipeline": {
        "runtime": "megatron-core", "num_gpus": 16, "tp": 2, "pp": 2, "sequence_parallel": True, "zero_stage": 1,
        "global_batch": 32,
    },
    "recompute": {"runtime": "megatron-core", "num_gpus": 4, "tp": 2, "recompute": "full"},
    "host stalls": {"runtime": "megatron-deepspeed-no-affinity", "num_gpus": 8, "tp": 2, "gpu": "a100-sxm-80gb"},
    "offload": {"runtime": "deepspeed-2021", "num_gpus": 4, "zero_stage": 2, "offload": "optimizer"},
    "forward": {"mode": "forward"},
}  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A small model's config.json."""
    path = tmp_path_factory.mktemp("small") / "config.json"
    path.write_text(json.dumps(SMALL))
    return str(path)


def check(found: Explanation) -> None:
    """Sums add up, formulas give their values, and every constant that is named is there."""
    known = {c.key for c in found.constants}
    for root in found.lines:
        for line in root.walk():
            scale = max(abs(line.value), max((abs(one.value * line.factor) for one in line.lines), default=0.0))
            if line.lines:
                assert line.factor * sum(one.value for one in line.lines) == pytest.approx(line.value, abs=1e-6 * scale)
            if line.formula and line.inputs:
                assert worked_out(line) == pytest.approx(line.value, rel=1e-6, abs=1.0 if line.unit == "B" else 1e-12)
            assert set(line.records) <= known, line
    for constant in found.constants:
        assert constant.source
        assert constant.file
        assert (constant.value is None) == bool(constant.rows)


def worked_out(line: Line) -> float:
    text = re.sub(r"(?<=[\w)]) +(?=[\w(])", " * ", line.formula.partition(":")[0].replace("sqrt(", "sqrt`("))
    names = {"__builtins__": {}, "sqrt": lambda x: x**0.5}
    return float(eval(text.replace("^", "**").replace("`", ""), names, dict(line.inputs)))


@pytest.mark.parametrize("plan", PLANS)
def test_a_step_adds_up(model: str, plan: str) -> None:
    answer, step = estimated(model, **{**H100, **PLANS[plan]})
    found = explain(answer, step)
    check(found)
    time, memory = found.lines[:2]
    assert time.value == answer.step_time_s
    assert memory.value == answer.memory.device
    small = [line for line in time.lines if line.name == "rounding"]
    assert sum(abs(line.value) for line in small) < 1e-6 * time.value
    for root in found.lines:
        for line in root.walk():
            if line.name == "rounding":
                assert abs(line.value) < (1 if line.unit == "B" else 1e-6 * time.value), root.name
    for row, value in (("parameters", answer.memory.parameters), ("activations", answer.memory.activations)):
        assert [line.value for line in memory.lines if line.name == row] == ([value] if value else [])
    for line, one in zip(found.lines[2:], answer.mfu, strict=True):
        assert line.value == one.value


@pytest.mark.parametrize("device", ["l40s", "mi300x", "v100-sxm-32gb", "tpu-v5p"])
def test_devices_of_every_kind(model: str, device: str) -> None:
    """Constants borrowed from another device, or made up from datasheets, name their file all the same."""
    precision = "fp16-mixed" if device.startswith("v100") else "bf16-mixed"
    check(explain(*estimated(model, gpu=device, seq_len=256, num_gpus=4, tp=2, precision=precision)))


SERVED: dict[str, tuple[dict[str, Any], dict[str, Any], InferencePlan]] = {
    "static": ({"batch": 4}, {"runtime": "tensorrt-llm"}, InferencePlan()),
    "split": ({"batch": 4}, {"runtime": "vllm"}, InferencePlan(tp=2, pp=2)),
    "many": ({"concurrency": 8}, {"runtime": "vllm"}, InferencePlan()),
    "launches": ({"batch": 1}, {"runtime": "transformers-eager"}, InferencePlan()),
}


@pytest.mark.parametrize("case", SERVED)
def test_serving_adds_up(model: str, case: str) -> None:
    load, more, plan = SERVED[case]
    answer = estimate_inference(model, Request(64, 16), Load(**load), gpu="h100-sxm-80gb", plan=plan, **more)
    assert answer.explanation is not None
    check(answer.explanation)
    values = {line.name: line.value for line in answer.explanation.lines}
    assert values["TTFT"] == answer.served.ttft
    assert values["TPOT"] == answer.served.tpot
    assert values["latency"] == answer.served.latency
    assert values["KV cache of a request"] == pytest.approx(sum(row.request_bytes for row in answer.cache))


def test_json_and_back(model: str) -> None:
    found = explain(*estimated(model, **H100, num_gpus=4, tp=2))
    again = json.loads(json.dumps({"explanation": explanation_dict(found)}))
    assert explanation_of(again, "x.json") == found


@pytest.fixture
def saved(command: Run, model: str, tmp_path: Path) -> str:
    """A saved answer, as the command line writes it."""
    path = tmp_path / "answer.json"
    result = command("estimate", model, "--gpu", "h100-sxm-80gb", "--seq-len", 256, "--json", path)
    assert result.exit_code == 0, result.output
    return str(path)


def test_the_headlines(command: Run, saved: str) -> None:
    text = command("explain", saved).stdout
    answer = json.loads(Path(saved).read_text())
    assert text.startswith("step time  ")
    assert re.search(r"^  optimizer  .* %$", text, re.MULTILINE)
    assert "name a line to see all below it" in text
    assert f"tokens {answer['tokens_per_step']:,}" in text
    assert max(map(len, text.splitlines())) <= 100


def test_a_kernel_down_to_the_source_of_its_constants(command: Run, saved: str) -> None:
    text = command("explain", saved, "gate_proj").stdout
    assert "= batch (x m k + w k n + write y m n) / (e_memory bandwidth)" in text
    assert re.search(r"peak 9\.894e\+14", text)
    assert re.search(r"matmul\.16bit: fitted on \d+ rows of .*; .* median error [\d.]+%, p90 [\d.]+%, held out",
                     text.replace("\n    ", " "))  # fmt: skip
    assert "hardware_db/fits/matmul/h100-sxm-80gb.toml" in text
    assert re.search(r"memory\.bandwidth: 3\.35 TB/s, datasheet", text)


def test_words_and_dashes_name_a_line(command: Run, saved: str) -> None:
    assert command("explain", saved, "step-time").stdout.startswith("step time  ")
    assert command("explain", saved, "Optimizer_States").stdout.startswith("optimizer states  ")


def test_depth(command: Run, saved: str) -> None:
    shallow, deep = (command("explain", saved, "backward", *more).stdout for more in (("--depth", 1), ()))
    assert 1 < len(shallow.splitlines()) < len(deep.splitlines())


def test_json_of_one_line(command: Run, saved: str) -> None:
    found = json.loads(command("explain", saved, "optimizer", "--json", "-").stdout)
    assert [line["name"] for line in found["lines"]] == ["optimizer"]


def test_estimate_says_the_same(command: Run, model: str, saved: str) -> None:
    asked = ("estimate", model, "--gpu", "h100-sxm-80gb", "--seq-len", 256)
    assert command(*asked, "--explain").stdout == command("explain", saved).stdout
    assert command(*asked, "--explain", "backward").stdout == command("explain", saved, "backward").stdout
    both = command(*asked, "--explain", "--json", "-")
    assert both.exit_code == 2
    assert "only one of `--json -`, `--csv -`, `--markdown` and `--explain` can go to stdout" in both.stderr


def test_serving_from_the_saved_answer(command: Run, model: str, tmp_path: Path) -> None:
    asked = ("estimate", model, "--gpu", "h100-sxm-80gb", "--mode", "inference", "--input-len", 64, "--output-len", 8)
    path = tmp_path / "served.json"
    assert command(*asked, "--json", path).exit_code == 0
    text = command("explain", path, "tpot").stdout
    assert text.startswith("TPOT  ")
    assert "decode step half way" in text
    assert command(*asked, "--explain", "tpot").stdout == text
