"""Rows of measured products: what a row says, what its clock adds, and what is skipped."""

import numpy as np
import pytest

from torchperf.hardware import load_accelerator
from torchperf.price.matmul import products_of
from torchperf.validate.rows import Case, case, cases, on_clock, predict, read, work_of

ROW = {
    "source": "aiconfigurator@095f58a5:h100_sxm/gemm/vllm/0.24.0", "gpu": "H100-SXM-80GB", "dtype": "bfloat16",
    "m": "16", "n": "4096", "k": "4096", "measured_us": "17.5", "batch": "1", "flag": "",
}  # fmt: skip


def of(**cells):
    found = case({**ROW, **cells})
    assert isinstance(found, Case)
    return found


@pytest.mark.parametrize(
    ("cells", "dtypes", "clock", "quantised"),
    [
        ({}, "16bit", "burst", False),
        ({"dtype": "float16", "source": "vidur@7d:x"}, "16bit", "sustained", False),
        ({"dtype": "float32", "source": "neusight@69:x"}, "fp32", "eager", False),
        ({"dtype": "fp8", "flag": "INCLUDES_DYNAMIC_QUANT"}, "fp8", "burst", True),
        ({"dtype": "fp8"}, "fp8", "burst", False),
        ({"dtype": "nvfp4"}, "nvfp4", "burst", True),
        ({"dtype": "int4_wo"}, "int4_wo", "burst", False),
    ],
)
def test_a_row_tells_class_clock_and_what_is_quantised(cells, dtypes, clock, quantised):
    found = of(**cells)
    assert (found.dtypes, found.clock, found.quantised) == (dtypes, clock, quantised)
    assert found.seconds == pytest.approx(17.5e-6)


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        ({"dtype": "float64"}, "no dtype `float64`"),
        ({"m": "", "n": ""}, "no `m`, `n`"),
        ({"k": "many"}, "a cell is no number"),
        ({"k": "0"}, "not positive"),
        ({"measured_us": "-1"}, "not positive"),
    ],
)
def test_a_row_that_is_no_product_says_why(cells, reason):
    assert reason in str(case({**ROW, **cells}))


def test_a_file_is_read_with_line_numbers_and_faults_are_listed(tmp_path):
    path = tmp_path / "rows.csv"
    cells = [",".join(ROW), ",".join(ROW.values()), ",".join({**ROW, "dtype": "float64"}.values())]
    path.write_text("\n".join(cells) + "\n")
    found, skipped = cases(read(path))
    assert [one.id for one in found] == ["2"]
    assert skipped == [("3", "no dtype `float64`")]


@pytest.mark.parametrize("dtypes", ["bfloat16", "fp8", "int8_wo", "int4_wo", "float32"])
def test_the_work_of_a_row_is_priced_as_the_class_of_the_row(dtypes):
    one = of(dtype=dtypes)
    assert products_of(work_of(one))[0] == one.dtypes


def test_the_eager_clock_shows_the_launch_until_the_kernel_is_longer():
    assert on_clock(np.array([1e-6, 1e-3]), 30e-6) == pytest.approx([30e-6, 1.015e-3])


@pytest.mark.parametrize(
    ("cells", "gpu"),
    [
        ({}, "h100-sxm-80gb"),
        ({"dtype": "fp8", "flag": "INCLUDES_DYNAMIC_QUANT"}, "h100-sxm-80gb"),
        ({"dtype": "fp8_block"}, "h100-sxm-80gb"),
        ({"dtype": "float32", "source": "neusight@69:x", "gpu": "T4"}, "t4"),
    ],
)
def test_a_row_is_predicted_on_its_own_clock(cells, gpu):
    one = of(**cells)
    price, shown = predict(one, load_accelerator(one.gpu))
    assert load_accelerator(one.gpu).name == gpu
    assert shown >= price.seconds > 0
    assert (shown > price.seconds) == (one.clock == "eager")
