"""The wheel carries the hardware database and the bundled configs, and works from any folder."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import torchperf

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The contents of a freshly built wheel, unpacked as an installer would."""
    built = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(built)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    (wheel,) = built.glob("torchperf-*.whl")
    site = tmp_path_factory.mktemp("site")
    zipfile.ZipFile(wheel).extractall(site)
    return site


def run(site: Path, cwd: Path, *args: str) -> str:
    code = "from torchperf.cli import main; import torchperf, sys; print(torchperf.__file__, file=sys.stderr); main()"
    env = {**os.environ, "PYTHONPATH": str(site)}
    done = subprocess.run([sys.executable, "-c", code, *args], cwd=cwd, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith(str(site)), done.stderr
    return done.stdout


def test_hardware_list_from_another_folder(installed: Path, tmp_path: Path) -> None:
    listed = run(installed, tmp_path, "hardware", "list")
    assert "h100-sxm-80gb" in listed
    assert "dgx-h100" in listed


def test_models_and_version(installed: Path, tmp_path: Path) -> None:
    assert "llama-3.1-8b" in run(installed, tmp_path, "models")
    assert torchperf.__version__ in run(installed, tmp_path, "--version")


def test_no_test_or_script_travels_along(installed: Path) -> None:
    assert {path.name for path in installed.iterdir()} == {"torchperf", f"torchperf-{torchperf.__version__}.dist-info"}
