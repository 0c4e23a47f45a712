"""What a name means: itself, or an alias that one record alone has; never a part of a name."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchperf.graph.errors import TorchperfError
from torchperf.hardware import load_accelerator, load_runtime, load_system
from torchperf.hardware.database import ENVIRONMENT, database


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("h100-sxm-80gb", "h100-sxm-80gb"), ("H100_SXM 80GB", "h100-sxm-80gb"), ("h100", "h100-sxm-80gb"),
        ("B200", "b200-sxm-180gb"), ("A100 40GB", "a100-sxm-40gb"), ("a100_80gb", "a100-sxm-80gb"),
        ("RTX 4090", "rtx-4090"), ("MI300X", "mi300x"), ("V100", "v100-sxm-32gb"), ("T4", "t4"),
        ("GB200", "gb200"), ("B300", "b300-sxm"), ("GB300", "gb300"), ("GH200", "gh200-96gb"),
    ],
)  # fmt: skip
def test_case_blanks_and_underscores_do_not_matter(given: str, meant: str) -> None:
    assert load_accelerator(given).name == meant


@pytest.mark.parametrize(
    ("published", "meant"),
    [
        ("A100-SXM4-40GB", "a100-sxm-40gb"), ("A100-40GB", "a100-sxm-40gb"), ("A100-SXM4-80GB", "a100-sxm-80gb"),
        ("A100-SXM-80GB", "a100-sxm-80gb"), ("A100-80GB", "a100-sxm-80gb"), ("A100-PCIe-40GB", "a100-pcie-40gb"),
        ("A100-PCIe-80GB", "a100-pcie-80gb"), ("A800-80GB", "a800-sxm-80gb"), ("A10G", "a10g"), ("A40", "a40"),
        ("B200", "b200-sxm-180gb"), ("B200-SXM-180GB", "b200-sxm-180gb"), ("B300-SXM", "b300-sxm"),
        ("B60", "arc-pro-b60"), ("GB200", "gb200"), ("GB300", "gb300"), ("GH200-96GB", "gh200-96gb"),
        ("H100", "h100-sxm-80gb"), ("H100-80GB", "h100-sxm-80gb"), ("H100-SXM-80GB", "h100-sxm-80gb"),
        ("H100-SXM5-80GB", "h100-sxm-80gb"), ("H100-96GB-HBM2e-500W", "h100-sxm-96gb"),
        ("H100-NVL-80GB", "h100-nvl-94gb"), ("H100-PCIe-80GB", "h100-pcie-80gb"),
        ("H200-SXM-141GB", "h200-sxm-141gb"), ("L4", "l4"), ("L40S", "l40s"), ("MI100", "mi100"),
        ("MI210", "mi210"), ("MI250", "mi250"), ("MI300X", "mi300x"), ("P100-PCIe-16GB", "p100-pcie-16gb"),
        ("P4", "p4"), ("RTX 6000 Ada", "rtx-6000-ada"), ("RTX A6000", "rtx-a6000"), ("RTX-A6000", "rtx-a6000"),
        ("RTX3090", "rtx-3090"), ("RTX4080", "rtx-4080"), ("RTX4090", "rtx-4090"), ("T4", "t4"),
        ("TPUv4", "tpu-v4"), ("V100-PCIe-32GB", "v100-pcie-32gb"), ("V100-SXM2-32GB", "v100-sxm-32gb"),
        ("V100-SXM3-32GB", "v100-sxm3-32gb"),
    ],
)  # fmt: skip
def test_names_that_published_measurements_use(published: str, meant: str) -> None:
    assert load_accelerator(published).name == meant


def test_an_ambiguous_name_lists_all_that_it_may_mean() -> None:
    with pytest.raises(TorchperfError) as caught:
        load_accelerator("A100")
    assert str(caught.value) == (
        "`A100` is more than one accelerator: "
        "`a100-pcie-40gb`, `a100-pcie-80gb`, `a100-sxm-40gb`, `a100-sxm-80gb`\n"
        "\n"
        "hint: name one of them, such as `a100-sxm-80gb`"
    )


@pytest.mark.parametrize("name", ["b20", "h10", "a10", "100", "l40", "sxm", "", "gb20", "b2", "h100-pcie-90gb"])
def test_a_part_of_a_name_is_no_name(name: str) -> None:
    with pytest.raises(TorchperfError, match=f"unknown accelerator `{name}`"):
        load_accelerator(name)


def test_an_unknown_name_tells_the_nearest() -> None:
    with pytest.raises(TorchperfError) as caught:
        load_accelerator("h100-sxm-80")
    assert caught.value.hint is not None
    assert caught.value.hint.startswith("nearest: `h100-sxm-80gb`")
    with pytest.raises(TorchperfError, match="unknown runtime `eagre`"):
        load_runtime("eagre")
    with pytest.raises(TorchperfError, match="`dgx-a100-40gb`, `dgx-a100-80gb`"):
        load_system("dgx-a100")


def test_a_missing_file_is_told_as_a_file() -> None:
    with pytest.raises(TorchperfError, match=r"there is no accelerator file `\./none\.toml`"):
        load_accelerator("./none.toml")


def test_the_environment_may_name_another_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENVIRONMENT, str(tmp_path))
    assert database().root == tmp_path
    with pytest.raises(TorchperfError, match="unknown accelerator `h100`"):
        load_accelerator("h100")
    monkeypatch.setenv(ENVIRONMENT, str(tmp_path / "none"))
    with pytest.raises(TorchperfError, match="`TORCHPERF_HARDWARE_DB` names no folder"):
        load_accelerator("h100")
