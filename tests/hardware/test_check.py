"""`torchperf hardware check FILE`: a good file of any kind, each law, all faults at once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from torchperf.cli import main
from torchperf.hardware.database import database

Spoil = Callable[..., str]


def check(path: object) -> Result:
    return CliRunner().invoke(main, ["hardware", "check", str(path)], prog_name="torchperf")


@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("accelerators/a40.toml", "ok: accelerator `a40`\n"),
        ("interconnects/nvlink4.toml", "ok: interconnect `nvlink4`\n"),
        ("systems/dgx-h100.toml", "ok: system `dgx-h100`\n"),
        ("runtimes/eager.toml", "ok: runtime `eager`\n"),
    ],
)
def test_a_good_file_of_any_kind(file: str, said: str) -> None:
    result = check(database().root / file)
    assert (result.exit_code, result.stdout, result.stderr) == (0, said, "")


def test_a_file_of_fits(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    good = (
        'parameters = { e_c = 0.9 }\nrows = "3"\nrange = "all"\nmedian_error = 0.1\np90_error = 0.2\nsource = "vidur"\n'
    )
    path.write_text(f'["16bit"]\n{good}')
    assert check(path).stdout == "ok: 1 fit\n"
    path.write_text(f'["16bit"]\n{good}\n[fp8]\nparameters = {{ e_c = "x" }}\nrows = "3"\n')
    result = check(path)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.splitlines()[0] == f"error: `{path}` has 5 faults"


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        (
            "fp8 = { value = 1978.9",
            "fp8 = { value = 900",
            "peak.matrix.fp8: 9e+14 FLOP/s is below `bf16`'s 9.894e+14: "
            "if the vendor says so, let the condition say `exception`",
        ),
        ("value = 3350", "value = 300", "peak.matrix.bf16: 3298 FLOP a byte of memory bandwidth is outside 10 to 2000"),
        ("value = 79.2", "value = 81", "memory.usable: 1.01 of the nominal, which must be 0.9 to 1"),
        ("l2 = { value = 50", "l2 = { value = 5000", "memory.l2: more than a fiftieth of the memory"),
        (
            "l2_bandwidth = { value = 8138",
            "l2_bandwidth = { value = 813",
            "memory.l2_bandwidth: below the bandwidth of the memory",
        ),
        (
            'condition = "dense, fp32',
            'condition = "sparse, fp32',
            "peak.matrix.tf32.condition: must begin with `dense`, and tell of no sparsity",
        ),
    ],
)
def test_a_law_that_a_device_breaks(spoiled: Spoil, old: str, new: str, fault: str) -> None:
    path = spoiled((old, new))
    result = check(path)
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"  fault  {path}:{fault}" in result.stderr.splitlines()


def test_a_stated_exception_is_no_fault(spoiled: Spoil) -> None:
    slow = 'fp8 = { value = 900, unit = "TFLOP/s", basis = "assumed", source = "torchperf_assumption"'
    old = (
        'fp8 = { value = 1978.9, unit = "TFLOP/s", basis = "whitepaper", source = "klockwood_h100", condition = "dense'
    )
    assert check(spoiled((old, f"{slow}, condition = \"dense; the vendor's exception"))).exit_code == 0


def test_a_pair_faster_than_all_links(spoiled: Spoil) -> None:
    path = spoiled(
        ("pair_bandwidth = { value = 450", "pair_bandwidth = { value = 900"), kind="interconnects", name="nvlink4"
    )
    assert f"fault  {path}:pair_bandwidth: above `bandwidth`" in check(path).stderr


def test_faults_of_form_are_told_at_once(spoiled: Spoil) -> None:
    path = spoiled(("year = 2022", 'year = "2022"'), ('unit = "W"', 'unit = "GB"'))
    result = check(path)
    assert result.exit_code == 2
    assert result.stderr.splitlines()[0] == f"error: `{path}` has 2 faults"


def test_a_file_that_is_not_there() -> None:
    result = check("none.toml")
    assert (result.exit_code, result.stderr) == (2, "error: there is no file `none.toml`\n")
