"""Figures that other tables get wrong, pinned: sparse peaks, GB for GiB, and what a device does not have."""

from __future__ import annotations

import pytest

from torchperf.graph.errors import TorchperfError
from torchperf.hardware import (
    load_accelerator,
    load_interconnect,
    load_runtime,
    load_system,
    single,
    system_for,
)

TERA = 1e12
GIB = 2**30


@pytest.mark.parametrize(
    ("name", "bf16"),
    [
        ("a100-sxm-40gb", 312), ("a100-sxm-80gb", 312), ("h100-sxm-80gb", 989.4), ("h200-sxm-141gb", 989.4),
        ("b200-sxm-180gb", 2250), ("mi300x", 1307.4), ("l40s", 362.05), ("rtx-4090", 165.2),
    ],
)  # fmt: skip
def test_dense_bf16_peaks(name: str, bf16: float) -> None:
    assert load_accelerator(name).peak_flops_per_s("matrix", "bf16") == pytest.approx(bf16 * TERA)


@pytest.mark.parametrize(
    ("name", "gib"),
    [
        ("a100-sxm-40gb", 39.49), ("a100-sxm-80gb", 79.35), ("h100-sxm-80gb", 79.2),
        ("h200-sxm-141gb", 140.4), ("b200-sxm-180gb", 178.35), ("mi300x", 191.98),
        ("v100-sxm-32gb", 31.74), ("l40s", 44.42), ("t4", 14.58), ("rtx-4090", 23.64),
    ],
)  # fmt: skip
def test_usable_memory_is_what_torch_reports(name: str, gib: float) -> None:
    assert load_accelerator(name).memory.usable.value == pytest.approx(gib * GIB, rel=2e-4)


@pytest.mark.parametrize(
    ("name", "fp32"), [("h100-sxm-80gb", 66.9), ("a100-sxm-80gb", 19.5), ("v100-sxm-32gb", 15.7), ("t4", 8.1)]
)
def test_fp32_without_tf32_runs_on_the_vector_engine(name: str, fp32: float) -> None:
    device = load_accelerator(name)
    assert device.matmul_engine("fp32") == "vector"
    assert device.peak_flops_per_s("vector", "fp32") == pytest.approx(fp32 * TERA)


@pytest.mark.parametrize("name", ["v100-sxm-32gb", "t4"])
@pytest.mark.parametrize("engine", ["matrix", "vector"])
def test_volta_and_turing_have_no_bf16(name: str, engine: str) -> None:
    device = load_accelerator(name)
    assert device.matmul_engine("bf16") == "matrix"
    with pytest.raises(TorchperfError, match=f"device `{name}` has no `bf16` peak on its {engine} engine"):
        device.peak_flops_per_s(engine, "bf16")


def test_a_missing_peak_reads_as_the_manual_says() -> None:
    with pytest.raises(TorchperfError) as caught:
        load_accelerator("a100-sxm-80gb").peak_flops_per_s("matrix", "fp8")
    assert str(caught.value) == (
        "device `a100-sxm-80gb` has no `fp8` peak on its matrix engine\n"
        "  where  hardware_db/accelerators/a100-sxm-80gb.toml: peak.matrix\n"
        "\n"
        "hint: choose a precision it has: `fp64`, `tf32`, `bf16`, `fp16`, `int8`; or another device"
    )


def test_types_of_the_same_rate_share_a_peak() -> None:
    device = load_accelerator("h100")
    assert device.peak("matrix", "i8") == device.peak("matrix", "int8")
    assert device.peak("matrix", "fp8_e5m2") == device.peak("matrix", "fp8")


def test_efficiency_falls_back_to_the_engines_default() -> None:
    device = load_accelerator("h100")
    assert device.efficiency("matrix", "bf16") == device.efficiency("matrix")
    assert device.efficiency("matrix").value == 0.78


def test_a_collective_takes_the_tabulated_ranks_next_below() -> None:
    link = load_interconnect("nvlink4")
    assert [link.efficiency("all_reduce", n).value for n in (1, 2, 3, 4, 8, 16)] == [
        0.68, 0.68, 0.68, 0.75, 0.99, 0.99,
    ]  # fmt: skip
    assert link.efficiency("broadcast", 8).value == 0.66


def test_the_device_alone_has_no_links() -> None:
    device = load_accelerator("h100")
    system = single(device)
    assert system == system_for(device, 1)
    assert (system.num_accelerators, system.num_nics, system.scale_up, system.scale_out) == (1, 0, None, None)
    assert system.scale_out_bytes_per_s == 0
    assert system.host_link.name == "pcie5"


def test_more_gpus_take_the_system_built_of_the_device() -> None:
    system = system_for(load_accelerator("h100"), 64)
    assert system == load_system("dgx-h100")
    assert system.scale_out_bytes_per_s == pytest.approx(50e9)
    assert system.scale_up is not None
    assert system.scale_up.bandwidth.value == pytest.approx(450e9)


def test_the_two_runtimes_differ_in_fusion_and_launch() -> None:
    eager, compiled = load_runtime("eager"), load_runtime("compile")
    assert (eager.fused, compiled.fused) == (False, True)
    assert eager.launch.value > compiled.launch.value
    assert 0.5 * GIB <= eager.reserve.value <= GIB
