"""The public names, pinned: no room bears one of them, and each can be asked for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import torchperf

NAMES = [
    "TorchperfError", "__version__", "capture", "estimate", "estimate_inference", "inspect", "load", "mfu", "save",
    "split",
]  # fmt: skip


def test_the_public_names() -> None:
    assert sorted(torchperf.__all__) == sorted(NAMES)
    assert all(getattr(torchperf, name) is not None for name in NAMES)
    assert dir(torchperf) == sorted(NAMES)


def test_no_room_or_file_bears_the_name_of_a_public_function() -> None:
    folder = Path(torchperf.__file__).parent
    assert {path.stem for path in folder.iterdir()}.isdisjoint(NAMES)


def test_importing_torchperf_imports_nothing_heavy() -> None:
    code = "import sys, torchperf; print(sorted({'torch', 'numpy', 'transformers', 'click'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
