"""A bar where stderr is a terminal, nothing elsewhere; and Ctrl-C leaves no half-written file."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import struct
import subprocess
import sys
import termios
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

import torchperf
from torchperf.frontend import store
from torchperf.graph import progress

Run = Callable[..., Result]
PROGRAM = "from torchperf.cli import main; main(prog_name='torchperf')"
SMALL = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 64, "hidden_size": 32,
    "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
    "max_position_embeddings": 256,
}  # fmt: skip


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "small" / "config.json"
    path.parent.mkdir()
    path.write_text(json.dumps(SMALL))
    return path


def asked(model: Path, stderr: int, *more: str) -> subprocess.CompletedProcess[str]:
    root = Path(torchperf.__file__).parent.parent
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, "estimate", str(model), "--gpu", "t4", "--precision", "fp16-mixed", *more],
        env={**os.environ, "PYTHONPATH": str(root), "TERM": "xterm"}, stdout=subprocess.PIPE, stderr=stderr, text=True,
        timeout=120, check=True,
    )  # fmt: skip


def test_a_capture_shows_a_bar_on_a_terminal_alone(model: Path) -> None:
    parent, child = pty.openpty()
    fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    try:
        done = asked(model, child, "--refresh")
        os.close(child)
        told = b""
        try:
            while chunk := os.read(parent, 65536):
                told += chunk
        except OSError:  # the other end is closed
            pass
    finally:
        os.close(parent)
    assert "recordings" in told.decode()
    assert "small, train" in told.decode()
    assert "recordings" not in done.stdout
    piped = asked(model, subprocess.PIPE, "--refresh")
    assert piped.stderr == ""
    assert piped.stdout == done.stdout


def test_who_listens_hears_every_recording(command: Run, model: Path) -> None:
    heard: list[str] = []
    with progress.heard_by(heard.append):
        assert command("inspect", model).exit_code == 0
        heard.clear()
        assert command("capture", model, "--refresh", "-o", model.parent / "graph.json").exit_code == 0
        with progress.heard_by(None):
            progress.done("unheard")
    progress.done("nobody listens")
    assert len(heard) >= 5
    assert set(heard) == {"small, train"}


def interrupts(*args: Any, **kwargs: Any) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("flag", ["--json", "--csv"])
def test_ctrl_c_while_an_answer_is_written(
    command: Run, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flag: str
) -> None:
    """Neither the file nor its temporary stays, and an older file is as it was."""
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "old").write_text("as it was")
    monkeypatch.setattr(Path, "replace", interrupts)
    for name in ("new", "old"):
        result = command("estimate", model, "--gpu", "h100-sxm-80gb", flag, folder / name)
        assert (result.exit_code, result.stdout) == (130, "")
    assert [(path.name, path.read_text()) for path in folder.iterdir()] == [("old", "as it was")]


def test_ctrl_c_while_a_graph_is_written(
    command: Run, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    assert command("capture", model, "-o", tmp_path / "warm.json").exit_code == 0
    monkeypatch.setattr(store, "encode", interrupts)
    assert command("capture", model, "-o", folder / "graph.json").exit_code == 130
    assert list(folder.iterdir()) == []


def test_ctrl_c_while_a_model_is_recorded(
    command: Run, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a cache entry nor the file that was asked for."""
    monkeypatch.setenv("TORCHPERF_CACHE", str(tmp_path / "cache"))
    from torchperf.frontend import run as recording

    monkeypatch.setattr(recording, "find_loss", interrupts)
    result = command("estimate", model, "--gpu", "h100-sxm-80gb", "--json", tmp_path / "answer.json")
    assert result.exit_code == 130
    assert "Traceback" not in result.output
    assert not (tmp_path / "answer.json").exists()
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]


def test_ctrl_c_while_runs_are_priced(command: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torchperf.validate import training

    row = {
        "id": "titan-1", "model": "Llama-3.1-8B", "layers": "32", "hidden": "4096", "heads": "32", "kv_heads": "8",
        "ffn_hidden": "14336", "vocab": "128256", "gpu": "H100-96GB-HBM2e-500W", "num_gpus": "8", "tp": "1", "pp": "1",
        "dp": "8", "cp": "1", "fsdp": "3", "micro_batch": "2", "global_batch": "16", "seq_len": "8192",
        "precision": "bf16", "recompute": "selective", "compile": "0", "measured_tokens_per_s_per_gpu": "5762",
        "notes": "spec=A",
    }  # fmt: skip
    head = sorted({*row, *training.COLUMNS})
    data = tmp_path / "runs.csv"
    data.write_text(",".join(head) + "\n" + ",".join(row.get(name, "") for name in head) + "\n")
    monkeypatch.setattr(training.Predictor, "__call__", interrupts)
    result = command("validate", "training", "--data", data, "--write", tmp_path / "errors.toml")
    assert result.exit_code == 130, result.output
    assert not (tmp_path / "errors.toml").exists()
