"""CSV files of measured rows: cells that hold anything, rows that are short or long, files that are no CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fuzz_examples import share
from hypothesis import given
from hypothesis import strategies as st

from torchperf.report.inference_validation import inference_table
from torchperf.report.measured_runs import runs_dict
from torchperf.report.training import training_table
from torchperf.report.validation import validation_dict, validation_table
from torchperf.validate import inference, training
from torchperf.validate.kernels import KINDS, validate_kernels
from torchperf.validate.training_predict import Prediction

Attempt = Callable[[], AbstractContextManager[None]]


GOOD: dict[str, dict[str, str]] = {
    "gemm": {
        "source": "vidur@1", "gpu": "A100-80GB", "dtype": "float16", "m": "64", "n": "256", "k": "64",
        "measured_us": "4.1", "batch": "1", "flag": "",
    },
    "attention": {
        "source": "aiconfigurator@1:a100_sxm/attention/vllm/0.14.0", "gpu": "A100-SXM4-80GB", "dtype": "bfloat16",
        "phase": "prefill", "batch": "2", "heads": "24", "kv_heads": "24", "head_dim": "128", "q_len": "2048",
        "kv_len": "2048", "measured_us": "425.3", "causal": "1",
    },
    "collective": {
        "source": "aiconfigurator@1:comm/nccl", "gpu": "A100-SXM4-80GB", "topology": "HGX-A100 NVSwitch",
        "op": "all_reduce", "num_gpus": "2", "bytes": "1024", "dtype": "float16", "measured_us": "9.08",
    },
    "other": {
        "source": "vidur@1:mlp.csv", "gpu": "A100-80GB", "op": "rmsnorm", "shape": "1680x5120", "dtype": "float16",
        "measured_us": "41.75",
    },
    "experts": {
        "source": "aiconfigurator@1:moe", "gpu": "H100-SXM", "op": "moe_ffn", "dtype": "bfloat16",
        "shape": "tokens=16;hidden=4096;inter=14336;topk=2;experts=8;tp=1;ep=1;dist=balanced", "measured_us": "100",
    },
    "training": {
        "id": "kor22-001", "source_note": "Korthikanti", "model": "Megatron-GPT-22B", "params_b": "22", "layers": "48",
        "hidden": "6144", "heads": "64", "kv_heads": "64", "ffn_hidden": "24576", "vocab": "", "seq_len": "2048",
        "gpu": "A100-SXM-80GB", "num_gpus": "8", "gpus_per_node": "", "tp": "8", "pp": "1", "vpp": "1", "dp": "1",
        "cp": "1", "ep": "1", "fsdp": "", "sequence_parallel": "0", "micro_batch": "4", "global_batch": "4",
        "precision": "fp16", "recompute": "full", "measured_step_time_s": "1.42", "measured_tokens_per_s_per_gpu": "",
        "measured_tflops_per_gpu": "", "measured_mfu": "", "measured_memory_gib_per_gpu": "", "notes": "spec=A",
    },
    "inference": {
        "id": "inf0001", "source_note": "NVIDIA NeMo/TRT-LLM doc table", "model": "Llama-2-7B", "params_b": "6.74",
        "gpu": "A100-SXM4-80GB", "num_gpus": "1", "tp": "1", "pp": "1", "precision": "w16/kv16/c16", "batch": "1",
        "input_len": "200", "output_len": "200", "framework": "TensorRT-LLM (NeMo 2023-24)", "measured_ttft_ms": "",
        "measured_tpot_ms": "10", "measured_total_latency_ms": "2190.0", "measured_throughput_tok_s": "", "notes": "",
    },
}  # fmt: skip
CELLS = st.one_of(
    st.sampled_from(
        ["", "0", "-1", "1", "3", "0.5", "nan", "inf", "-inf", "1e308", "1e400", "1e-320", "9" * 400, "9" * 5000,
         "1e30",
         "x", "1x0", "0x0", "x" * 50, "float16", "fp8", "decode", "2 node(s)", "0 node, NVSwitch", "all_to_all", "p2p",
         "=cmd|' /C calc'!A0", "__import__('os').system('id')", "a;b=1", "tokens=0;ep=0", "٣", "²", "\x00", "\n", '"',
         "power_law_1.2", "tokens=16;hidden=64;inter=64;topk=2;experts=8;tp=0;ep=0;dist=power_law_9999"]
    ),
    st.integers(-10, 10**20).map(str),
    st.text(max_size=8).filter(lambda t: "\r" not in t),
)  # fmt: skip


@st.composite
def tables(draw: st.DrawFn, good: dict[str, str]) -> bytes:
    """A CSV with a few rows, some cells of which are changed; some files are cut, or miss a column."""
    columns = list(good)
    if draw(st.integers(0, 9)) == 0:
        columns.remove(draw(st.sampled_from(columns)))
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(columns)
    for _ in range(draw(st.integers(0, 3))):
        row = {name: good[name] for name in columns}
        for name in draw(st.lists(st.sampled_from(columns), max_size=3)):
            row[name] = draw(CELLS)
        cells = list(row.values())
        writer.writerow(cells[: draw(st.integers(0, len(cells)))] if draw(st.integers(0, 9)) == 0 else cells)
    text = out.getvalue()
    if draw(st.integers(0, 9)) == 0:
        at = draw(st.integers(0, len(text)))
        text = text[:at] + draw(st.sampled_from(['"', "\x00", ",", "\ud800", ""])) + text[at + 1 :]
    return text.encode("utf-8", "surrogatepass")


@pytest.mark.parametrize("kind", ["gemm", "attention", "collective", "other", "experts"])
@share(15)
@given(st.data())
def test_kernels(attempt: Attempt, tmp_path: Path, kind: str, data: st.DataObject) -> None:
    """Every row is priced, or skipped with a reason."""
    file = tmp_path / "rows.csv"
    file.write_bytes(data.draw(tables(GOOD[kind])))
    with attempt():
        found = validate_kernels(file, tuple(KINDS))
        assert_tellable(validation_dict(found), validation_table(found))


def assert_tellable(answer: Any, table: str) -> None:
    """What goes into JSON is finite: a row that is not must have been skipped."""
    import json

    json.dumps(answer, allow_nan=False)
    assert table


@share(20)
@given(st.data())
def test_training(attempt: Attempt, tmp_path: Path, data: st.DataObject) -> None:
    """From cells to a plan and a model; the pricing itself has its own fuzz."""
    file = tmp_path / "rows.csv"
    file.write_bytes(data.draw(tables(GOOD["training"])))
    with attempt():
        found = training.validate_training(file, predict=lambda case: Prediction(1.0, 2e9, 3e9, 4e9, 0.5))
        specs = {id: case.spec for id, case in found.cases.items()}
        assumed = {id: case.assumptions for id, case in found.cases.items()}
        settings_ = {id: training.settings_of(case) for id, case in found.cases.items()}
        assert_tellable(runs_dict(found.validation, specs, assumed), training_table(found.validation, specs, settings_))


@share(20)
@given(st.data())
def test_inference(attempt: Attempt, tmp_path: Path, data: st.DataObject) -> None:
    """The same of served requests."""
    file = tmp_path / "rows.csv"
    file.write_bytes(data.draw(tables(GOOD["inference"])))
    answer: Any = SimpleNamespace(figure=lambda metric: 1.0, bounds=())
    with attempt():
        found = inference.validate_inference(file, predict=lambda case: answer)
        specs = {id: case.spec for id, case in found.cases.items()}
        assumed = {id: case.assumptions for id, case in found.cases.items()}
        settings_ = {id: inference.settings_of(case) for id, case in found.cases.items()}
        assert_tellable(
            runs_dict(found.validation, specs, assumed), inference_table(found.validation, specs, settings_)
        )
