"""A saved or cached graph is priced without torch: neither it nor transformers is imported, and it takes no time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import torchperf

PROGRAM = """
import json, sys, time
start = time.perf_counter()
from torchperf.cli import main
try:
    main(sys.argv[2:], prog_name="torchperf")
except SystemExit as end:
    code = end.code
heavy = sorted(name for name in ("torch", "transformers", "tqdm") if name in sys.modules)
open(sys.argv[1], "w").write(json.dumps({"code": code, "heavy": heavy, "seconds": time.perf_counter() - start}))
"""


@pytest.fixture
def fresh_process(tmp_path: Path):
    """`fresh_process("estimate", ...)`: (stdout, what the process reports of itself)."""

    def run(*args: object) -> tuple[str, dict[str, object]]:
        report = tmp_path / "report.json"
        root = Path(torchperf.__file__).parent.parent
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(report), *map(str, args)],
            env={**os.environ, "PYTHONPATH": str(root)}, capture_output=True, text=True, check=True, timeout=60,
        )  # fmt: skip
        assert done.stderr == ""
        return done.stdout, json.loads(report.read_text())

    return run


def asked(model: object, seq: int, command: str) -> tuple[object, ...]:
    more = {
        "estimate": ("--gpu", "h100-sxm-80gb"),
        "inspect": (),
        "mfu": ("--gpu", "h100-sxm-80gb", "--tokens-per-s-per-gpu", 1000),
    }[command]
    return (command, model, *more, "--seq-len", seq, "--json", "-")


@pytest.mark.parametrize("command", ["estimate", "inspect", "mfu"])
@pytest.mark.parametrize("source", ["saved", "cached"])
def test_no_torch(captured, fresh_process, tmp_path: Path, source: str, command: str) -> None:
    """At sizes that were never captured, and with the numbers that this process gives."""
    capture = captured("gpt2")
    model: object = "gpt2"
    if source == "saved":
        model = tmp_path / "gpt2.json"
        torchperf.save(capture, tmp_path / "gpt2.json")
    out, report = fresh_process(*asked(model, 768, command))
    assert (report["code"], report["heavy"]) == (0, [])
    answer = json.loads(out)
    assert answer["parameters"] == 124_439_808
    if command == "estimate":
        here = torchperf.estimate(capture, gpu="h100-sxm-80gb", seq_len=768)
        assert answer["step_time_s"] == here.step_time_s
        assert answer["memory_bytes"]["peak"] == here.memory.peak


def test_a_user_s_file_from_the_cache(fresh_process, tmp_path: Path) -> None:
    """The file is read for its hash and not run."""
    path = tmp_path / "model.py"
    path.write_text("import torch\nmodel = torch.nn.Linear(16, 16)\nexample_inputs = torch.empty(4, 16)\n")
    torchperf.capture(str(path))
    _, report = fresh_process("estimate", path, "--gpu", "h100-sxm-80gb", "--json", "-")
    assert (report["code"], report["heavy"]) == (0, [])


@pytest.mark.parametrize("args", [("hardware", "list"), ("models",), ("--version",), ("estimate", "--help")])
def test_commands_without_a_model(fresh_process, args: tuple[str, ...]) -> None:
    _, report = fresh_process(*args)
    assert (report["code"], report["heavy"]) == (0, [])


def test_an_error_without_a_model(fresh_process, tmp_path: Path) -> None:
    """A wrong name is refused before anything heavy is imported."""
    report = tmp_path / "report.json"
    root = Path(torchperf.__file__).parent.parent
    subprocess.run(
        [sys.executable, "-c", PROGRAM, str(report), "estimate", "gpt2", "--gpu", "h100-sxm-80g"],
        env={**os.environ, "PYTHONPATH": str(root)}, capture_output=True, check=True, timeout=60,
    )  # fmt: skip
    said = json.loads(report.read_text())
    assert (said["code"], said["heavy"]) == (2, [])
