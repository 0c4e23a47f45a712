"""The prices against every measured row at hand: medians of the issue's table, printed beside a plain roofline's.

The bars hold on rows kept out of the fit (each fit stores that error); here all rows are priced with the constants that
the database ships, so that a change of formula or constant cannot pass unseen. Skips where the data are absent.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from torchperf.graph.validation import Spread
from torchperf.validate.kernels import validate_kernels

BARS = {
    "ops_gemm.csv": {
        "A100-SXM4-80GB bfloat16": (0.065, 0.17),
        "H100-SXM-80GB bfloat16": (0.065, 0.17),
        "H200-SXM-141GB bfloat16": (0.065, 0.22),
        "B200-SXM-180GB bfloat16": (0.075, 0.25),
        "L40S bfloat16": (0.10, 0.40),
    },
    "collectives.csv": {
        "A100-SXM4-80GB float16 all_reduce": (0.06, 0.20),
        "H100-SXM-80GB float16 all_gather": (0.06, 0.20),
    },
}


def shared() -> Path | None:
    for folder in Path(__file__).resolve().parents:
        found = folder.parent / "shared" / "validation"
        if found.is_dir():
            return found
    return None


@pytest.mark.parametrize("name", sorted(BARS))
def test_medians(name: str) -> None:
    data = shared()
    if data is None:
        pytest.skip("the measured rows (shared/validation) are not beside this checkout")
    kinds = ("collective",) if name == "collectives.csv" else ("gemm", "attention", "other")
    answer = validate_kernels(data / name, kinds)
    found: dict[str, Spread] = {spread.group: spread for spread in answer.summary}
    for group, (median, p90) in BARS[name].items():
        spread = found[group]
        assert spread.median <= median, spread
        assert spread.p90 <= p90, spread
        assert spread.yardstick_median is not None
        assert spread.median < spread.yardstick_median / 3
    assert len(answer.skipped) < 0.03 * len(answer.rows), answer.skipped[:5]
