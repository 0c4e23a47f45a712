"""Base units as a person reads them, and cells that give way."""

from __future__ import annotations

import pytest

from torchperf.report import units
from torchperf.report.section import Section, clip, text


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0, "0 s"), (3.2e-8, "32 ns"), (4.5e-6, "4.50 us"), (0.0123, "12.30 ms"), (0.8123, "812.3 ms"),
        (12.0, "12.00 s"), (48_600, "13.50 h"), (2_343_611, "27.1 days"),
    ],
)  # fmt: skip
def test_seconds(value: float, shown: str) -> None:
    assert units.seconds(value) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0, "0 FLOP"), (1500, "1.50 kFLOP"), (57.913e9, "57.91 GFLOP"), (989e12, "989.0 TFLOP"),
        (2.25e15, "2,250.0 TFLOP"), (3.4e16, "34.00 PFLOP"),
    ],
)  # fmt: skip
def test_si(value: float, shown: str) -> None:
    assert units.si(value, "FLOP") == shown


def test_si_keeps_the_decimals_asked_for() -> None:
    assert units.si(57.9134e9, "FLOP", 3) == "57.913 GFLOP"


@pytest.mark.parametrize(
    ("value", "shown"), [(0, "0 B"), (640, "640 B"), (3 * 2**20, "3.0 MiB"), (80 * 2**30, "80.00 GiB")]
)
def test_size(value: float, shown: str) -> None:
    assert units.size(value) == shown


def test_clip_cuts_the_middle() -> None:
    assert clip("short", 10) == "short"
    assert clip("model.layers.*.mlp.up_proj", 16) == "model....up_proj"


def test_a_wide_cell_gives_way_and_no_line_passes_100_columns() -> None:
    row = ("x" * 90, "word " * 20, "9" * 20)
    shown = text([Section("name", ("words", "number"), (row,), right=(2,), flexible=(0,), wrapped=(1,))])
    assert max(len(line) for line in shown.splitlines()) <= 100
    assert shown.count("word") == 20 + 1
    assert "..." in shown


def test_sections_without_content_are_left_out() -> None:
    assert text([Section("a", items=("x",)), Section("b"), Section("c", items=("y",))]) == "a\n- x\n\nc\n- y\n"
