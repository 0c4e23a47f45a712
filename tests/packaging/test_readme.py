"""Each output that README.md shows is what the command prints."""

from __future__ import annotations

import importlib.util
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_outputs_are_not_stale() -> None:
    spec = importlib.util.spec_from_file_location("readme", ROOT / "scripts" / "readme.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert script.shown(text) == text, "python scripts/readme.py"
