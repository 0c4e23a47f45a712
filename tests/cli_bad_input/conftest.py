"""How every refusal must look."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

GPU = ("--gpu", "h100-sxm-80gb")


@pytest.fixture
def refused(command: Callable[..., Result]) -> Callable[..., str]:
    """`refused("estimate", ...)` -> stderr, once it is one message with exit code 2 and no traceback."""

    def run(*args: object) -> str:
        result = command(*args)
        assert result.exit_code == 2, result.output
        assert result.stdout == ""
        text = result.stderr
        assert text.startswith("error: ")
        assert "\nerror: " not in text
        assert not text.startswith("error: internal"), text
        assert "Traceback" not in text
        assert not text.splitlines()[0].endswith(".")
        debugged = command(*args, "--debug")
        assert debugged.exit_code == 2
        if not text.rstrip().endswith("--help`"):  # wrong usage has no traceback worth seeing
            assert "Traceback (most recent call last)" in debugged.stderr
            assert debugged.stderr.endswith(text)
        return text

    return run


@pytest.fixture
def refused_model(refused: Callable[..., str]) -> Callable[..., str]:
    """`refused_model(path)`: the same of `estimate` on an H100."""
    return lambda model, *args: refused("estimate", model, *GPU, *args)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], str]:
    """`file("model.py", text)` -> its name, in the folder that the command runs in."""
    monkeypatch.chdir(tmp_path)

    def write(name: str, text: str) -> str:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return name

    return write
