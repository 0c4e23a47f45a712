"""Case O25: the table of devices is sane, and a name never falls back to another device."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from click.testing import Result

from torchperf.graph.errors import TorchperfError
from torchperf.graph.system import Accelerator
from torchperf.hardware import accelerator_names, load_accelerator

ACCELERATORS = [load_accelerator(name) for name in accelerator_names()]
GIB = 2**30


def test_o25(command: Callable[..., Result]) -> None:
    """`torchperf hardware show NAME` says what the database holds, and refuses what it does not know."""
    for name, rate in BF16.items():
        values = json.loads(command("hardware", "show", name, "--json", "-").stdout)["values"]
        assert values["peak.matrix.bf16"]["value"] / 1e12 == pytest.approx(rate, rel=1e-3)
    for name, usable in USABLE.items():
        values = json.loads(command("hardware", "show", name, "--json", "-").stdout)["values"]
        assert values["memory.usable"]["value"] / GIB == pytest.approx(usable, rel=2e-3)
    for name in ("h101", "b2000", "A100-90GB", "quadro"):
        refused = command("hardware", "show", name)
        assert (refused.exit_code, refused.stdout) == (2, "")
        assert refused.stderr.startswith(f"error: unknown accelerator `{name}`\n")
    assert "error: `A100` is more than one accelerator" in command("hardware", "show", "A100").stderr


def test_o25_of_the_records() -> None:
    assert {name: tflops(load_accelerator(name)) for name in BF16} == pytest.approx(BF16, rel=1e-3)
    assert {name: load_accelerator(name).memory.usable.value / GIB for name in USABLE} == pytest.approx(
        USABLE, rel=2e-3
    )
    assert [d.name for d in ACCELERATORS if rises(d, "bf16", "fp8", "fp4") is False] == []
    for name in ("h101", "b2000", "A100-90GB", "quadro"):
        with pytest.raises(TorchperfError, match="unknown accelerator"):
            load_accelerator(name)
    with pytest.raises(TorchperfError, match="`A100` is more than one accelerator"):
        load_accelerator("A100")
    assert load_accelerator("B200").name != load_accelerator("GB200").name


BF16 = {
    "h100-sxm-80gb": 989.4, "h200-sxm-141gb": 989.4, "h100-pcie-80gb": 756, "rtx-4090": 165.2, "l40s": 362,
    "mi300x": 1307, "b200-sxm-180gb": 2250, "gaudi3": 1835, "tpu-v5p": 459,
}  # fmt: skip
USABLE = {
    "h100-sxm-80gb": 85e9 / GIB, "h200-sxm-141gb": 140.4, "b200-sxm-180gb": 178.35, "a40": 44.35,
    "rtx-3090": 23.58, "mi300x": 191.98,
}  # fmt: skip


def tflops(device: Accelerator) -> float:
    return device.peak_flops_per_s("matrix", "bf16") / 1e12


def rises(device: Accelerator, *ladder: str) -> bool:
    rates = [device.peak_flops_per_s("matrix", dtype) for dtype in ladder if dtype in device.dtypes("matrix")]
    return rates == sorted(rates)
