"""`validate`: every row priced or skipped with its reason; the kind of file told by its columns."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from torchperf.cli import main
from torchperf.graph.errors import TorchperfError
from torchperf.validate.kernels import validate_kernels

GEMM = "source,gpu,dtype,m,n,k,measured_us,batch,flag\n"
ROWS = (
    "lab@1:a,H100-SXM-80GB,bfloat16,4096,4096,4096,220,1,\n"
    "lab@1:a,H100-SXM-80GB,bfloat16,16,4096,4096,14,1,\n"
    "lab@1:a,NO-SUCH-GPU,bfloat16,16,16,16,5,1,\n"
    "lab@1:a,H100-SXM-80GB,bfloat16,x,16,16,5,1,\n"
    "lab@1:a,H100-SXM-80GB,int3,16,16,16,5,1,\n"
)


@pytest.fixture
def gemm(tmp_path: Path) -> Path:
    path = tmp_path / "gemm.csv"
    path.write_text(GEMM + ROWS)
    return path


def test_rows_are_priced_or_skipped_with_a_reason(gemm: Path) -> None:
    answer = validate_kernels(gemm, ("gemm",))
    assert [row.id for row in answer.rows] == ["2", "3"]
    assert [row.group for row in answer.rows] == ["H100-SXM-80GB bfloat16"] * 2
    assert all(row.predicted > (row.yardstick or 0.0) > 0.0 for row in answer.rows)
    assert [row.id for row in answer.skipped] == ["4", "5", "6"]
    assert "NO-SUCH-GPU" in answer.skipped[0].reason
    (spread,) = answer.summary
    assert spread.rows == 2
    assert spread.median <= spread.p90


def test_an_error_is_predicted_over_measured_less_one(gemm: Path) -> None:
    for row in validate_kernels(gemm, ("gemm",)).rows:
        assert row.error == pytest.approx(row.predicted / row.measured - 1)


def test_another_kind_of_file_is_refused(gemm: Path, tmp_path: Path) -> None:
    with pytest.raises(TorchperfError, match="holds gemm rows"):
        validate_kernels(gemm, ("collective",))
    path = tmp_path / "odd.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(TorchperfError, match="columns of no kind"):
        validate_kernels(path, ("gemm",))
    with pytest.raises(TorchperfError, match="cannot read"):
        validate_kernels(tmp_path / "absent.csv", ("gemm",))


def test_the_command(gemm: Path) -> None:
    result = CliRunner().invoke(main, ["validate", "ops", "--data", str(gemm), "--json", "-"])
    assert result.exit_code == 0, result.stderr
    answer = json.loads(result.stdout)
    assert set(answer["rows"][0]) == {"id", "group", "metric", "unit", "measured", "predicted", "error"}
    assert answer["rows"][0]["metric"] == "kernel_time"
    assert set(answer["skipped"][0]) == {"id", "reason"}
    table = CliRunner().invoke(main, ["validate", "ops", "--data", str(gemm)])
    assert "2 rows priced, 3 skipped" in table.stdout
    assert "plain roofline" in table.stdout
