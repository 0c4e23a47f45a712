"""A cached graph that is damaged or of another version is never trusted: the model is captured again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

MODEL = """
import torch
model = torch.nn.Linear(16, 16)
example_inputs = torch.empty(4, 16)
"""


def older(text: str) -> str:
    return json.dumps({**json.loads(text), "version": 0}, separators=(",", ":"))


def of_no_phase(text: str) -> str:
    """Valid JSON of the right form, and nonsense."""
    return text.replace('"phase":"forward"', '"phase":"sideways"').replace('"forward"', '"sideways"')


DAMAGE: dict[str, Callable[[str], str]] = {
    "empty": lambda text: "",
    "truncated": lambda text: text[: len(text) // 2],
    "not JSON": lambda text: "graph",
    "older": older,
    "nonsense": of_no_phase,
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_captured_again(command, file, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str) -> None:
    monkeypatch.setenv("TORCHPERF_CACHE", str(tmp_path / "cache"))
    asked = ("estimate", file("model.py", MODEL), "--gpu", "h100-sxm-80gb", "--json", "-")
    fresh = command(*asked)
    assert (fresh.exit_code, fresh.stderr) == (0, "")
    (entry,) = (tmp_path / "cache").iterdir()
    whole = entry.read_text()
    entry.write_text(DAMAGE[damage](whole))
    again = command(*asked)
    assert (again.exit_code, again.stderr) == (0, "")
    assert again.stdout == fresh.stdout
    assert json.loads(entry.read_text())["version"] == json.loads(whole)["version"]
    assert entry.read_text() == whole


def test_a_cache_that_cannot_be_written(command, file, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is a convenience: the estimate comes all the same."""
    (tmp_path / "taken").write_text("a file where the folder should be")
    monkeypatch.setenv("TORCHPERF_CACHE", str(tmp_path / "taken" / "cache"))
    result = command("estimate", file("model.py", MODEL), "--gpu", "h100-sxm-80gb")
    assert (result.exit_code, result.stderr) == (0, "")
