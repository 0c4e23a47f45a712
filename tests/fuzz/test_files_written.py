"""The cache and the files that answers go to, on a full disk, in a folder that is none, and when a run is killed."""

from __future__ import annotations

import errno
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

MODEL = "import torch\nmodel = torch.nn.Linear(16, 16)\nexample_inputs = torch.empty(4, 16)\n"
GPU = ("--gpu", "h100-sxm-80gb")


@pytest.fixture
def cache(empty: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of its own, not made yet, beside model.py."""
    (empty / "model.py").write_text(MODEL)
    monkeypatch.setenv("TORCHPERF_CACHE", str(empty / "cache"))
    return empty / "cache"


def failing(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """From now on whatever is written to a temporary file fails after a few bytes."""

    class Full(io.FileIO):
        def write(self, data: Any) -> int:
            super().write(bytes(data if not isinstance(data, str) else data.encode())[:7])
            raise error

    monkeypatch.setattr(os, "fdopen", lambda handle, *rest, **more: Full(handle, "w"))


FULL = OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_costs_the_cache_alone(
    command: Callable[..., Result], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        failing(patch, FULL)
        first = command("estimate", "model.py", *GPU)
    assert (first.exit_code, first.stderr, list(cache.iterdir())) == (0, "", [])
    again = command("estimate", "model.py", *GPU)
    assert again.stdout == first.stdout
    assert len(list(cache.iterdir())) == 1


@pytest.mark.parametrize("place", ["file", "unwritable"])
def test_a_cache_folder_that_cannot_be(
    command: Callable[..., Result], cache: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    if place == "file":
        cache.write_text("no folder")
    else:  # chmod does not stop root
        real = os.open

        def refuse(path: Any, *rest: Any, **more: Any) -> int:
            if str(path).startswith(str(cache)):
                raise PermissionError(errno.EACCES, "Permission denied")
            return real(path, *rest, **more)

        monkeypatch.setattr(os, "open", refuse)
    found = command("estimate", "model.py", *GPU)
    assert (found.exit_code, found.stderr) == (0, "")
    assert not cache.is_dir() or not list(cache.iterdir())


def test_what_a_killed_run_left_is_not_read(command: Callable[..., Result], cache: Path) -> None:
    first = command("estimate", "model.py", *GPU)
    (entry,) = cache.iterdir()
    whole = entry.read_bytes()
    entry.rename(cache / f".{entry.name}.half")
    (cache / f".{entry.name}.half").write_bytes(whole[:100])
    again = command("estimate", "model.py", *GPU)
    assert (again.exit_code, again.stdout) == (0, first.stdout)
    assert entry.read_bytes() == whole


def test_two_processes_write_one_entry(command: Callable[..., Result], cache: Path) -> None:
    root = Path(__file__).parents[2]
    code = "from torchperf.cli import main; main()"
    args = [sys.executable, "-c", code, "estimate", "model.py", *GPU]
    environment = os.environ | {"PYTHONPATH": str(root)}
    runs = [subprocess.Popen(args, stdout=subprocess.PIPE, env=environment) for _ in range(2)]
    said = [run.communicate(timeout=120)[0].decode() for run in runs]
    assert [run.returncode for run in runs] == [0, 0]
    (entry,) = cache.iterdir()
    assert json.loads(entry.read_bytes())["format"] == "torchperf-graph"
    assert said == [command("estimate", "model.py", *GPU).stdout] * 2


WRITERS = [("estimate", "--json"), ("estimate", "--csv"), ("estimate", "--trace"), ("capture", "-o")]


def line(graph: Path, command: str, flag: str, target: str) -> list[str]:
    return [command, str(graph), *(GPU if command == "estimate" else ()), flag, target]


@pytest.mark.parametrize(("name", "flag"), WRITERS)
def test_a_missing_folder_is_told(
    command: Callable[..., Result], graph_file: Path, empty: Path, name: str, flag: str
) -> None:
    found = command(*line(graph_file, name, flag, "nosuch/out.json"))
    assert found.exit_code == 2
    assert found.stderr.startswith("error: cannot write `nosuch/out.json`")
    assert list(empty.iterdir()) == []


@pytest.mark.parametrize(("name", "flag"), WRITERS)
@pytest.mark.parametrize(("error", "code"), [(FULL, 2), (KeyboardInterrupt(), 130)], ids=["full", "interrupted"])
def test_nothing_half_written_stays(
    command: Callable[..., Result], graph_file: Path, empty: Path, monkeypatch: pytest.MonkeyPatch, name: str,
    flag: str, error: BaseException, code: int,
) -> None:  # fmt: skip
    (empty / "out.json").write_text("of before")
    failing(monkeypatch, error)
    found = command(*line(graph_file, name, flag, "out.json"))
    assert found.exit_code == code
    assert ("no space left" in found.stderr.lower()) == (code == 2)
    assert [(path.name, path.read_text()) for path in empty.iterdir()] == [("out.json", "of before")]
