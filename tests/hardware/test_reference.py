"""REFERENCE.md is what the script writes from the database."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from torchperf.graph.system import Sourced
from torchperf.hardware import accelerator_names
from torchperf.hardware.database import bib_keys, database

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("reference", ROOT / "scripts" / "reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_file_is_not_stale(script: ModuleType) -> None:
    assert (ROOT / "REFERENCE.md").read_text(encoding="utf-8") == script.reference(), "python scripts/reference.py"


def test_every_device_and_every_source_is_in_it(script: ModuleType) -> None:
    text = script.reference()
    bib = (database().root / "sources.bib").read_text(encoding="utf-8")
    assert [name for name in accelerator_names() if f"\n### {name}\n" not in text] == []
    assert [key for key in bib_keys(bib) if f"\n- **{key}**: " not in text] == []


@pytest.mark.parametrize(
    ("value", "unit", "shown"),
    [
        (989.4e12, "FLOP/s", "989.4 TFLOP/s"), (1555e9, "B/s", "1.555 TB/s"), (80 * 2**30, "B", "80 GiB"),
        (1.65e-6, "s", "1.65 us"), (1.83e9, "Hz", "1.83 GHz"), (700, "W", "700 W"), (0.84, "1", "0.84"),
        (0.0, "s", "0 s"), (132.0, "1", "132"),
    ],
)  # fmt: skip
def test_numbers_keep_five_digits(script: ModuleType, value: float, unit: str, shown: str) -> None:
    assert script.number(Sourced(value, unit, "", "", "", "")) == shown
