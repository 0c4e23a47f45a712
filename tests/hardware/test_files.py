"""A user's own files: an accelerator by path, a system that names one beside itself, sources of one's own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from torchperf.graph.errors import TorchperfError
from torchperf.hardware import load_accelerator, load_system, system_for

MINE = ('name = "h100-sxm-80gb"', 'name = "mine"')
SYSTEM = """
name = "my-box"
accelerator = "./my.toml"
scale_up = "nvlink4"
host_link = "pcie5"
accelerators_per_node = { value = 4, unit = "1", basis = "assumed", source = "my_paper", scope = "per_node" }
nics_per_node = { value = 0, unit = "1", basis = "assumed", source = "my_paper", scope = "per_node" }
host_memory = { value = 1, unit = "TiB", basis = "assumed", source = "my_paper", scope = "per_node" }
"""


def test_an_accelerator_by_path(spoiled: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    path = Path(spoiled(MINE, ("value = 989.4", "value = 1000")))
    assert load_accelerator(str(path)).name == "mine"
    monkeypatch.chdir(path.parent)
    device = load_accelerator("./my.toml")
    assert device.file == "my.toml"
    assert load_accelerator("my.toml") == device


def test_a_device_without_a_system_is_told_apart_from_one_alone(spoiled: Callable[..., str]) -> None:
    device = load_accelerator(spoiled(MINE))
    assert system_for(device, 1).accelerator == device
    with pytest.raises(TorchperfError, match="no system is known that joins 8 of `mine`"):
        system_for(device, 8)


def test_a_changed_device_keeps_its_system(spoiled: Callable[..., str]) -> None:
    device = load_accelerator(spoiled(("value = 3350", "value = 2400")))
    assert system_for(device, 8).name == "dgx-h100"
    assert system_for(device, 8).accelerator.memory.bandwidth.value == pytest.approx(2400e9)


def test_a_system_by_path_with_its_own_device_and_sources(spoiled: Callable[..., str]) -> None:
    path = Path(spoiled(MINE)).parent / "box.toml"
    path.write_text(SYSTEM, encoding="utf-8")
    (path.parent / "sources.bib").write_text("@misc{my_paper,\n title = {Mine}\n}\n", encoding="utf-8")
    system = load_system(str(path))
    assert (system.accelerator.name, system.num_accelerators, system.scale_out) == ("mine", 4, None)


def test_what_a_system_names_and_needs_is_checked(spoiled: Callable[..., str]) -> None:
    path = spoiled(
        ('accelerator = "h100-sxm-80gb"', 'accelerator = "h101"'),
        ('scale_up = "nvlink4"\n', ""),
        ('scale_out = "ib-ndr"\n', ""),
        ("value = 2,", "value = -2,"),
        kind="systems",
        name="dgx-h100",
    )
    with pytest.raises(TorchperfError) as caught:
        load_system(path)
    faults = [value.removeprefix(f"{path}:") for _, value in caught.value.facts]
    assert len(faults) == 4
    assert faults[0].startswith("accelerator: unknown accelerator `h101` (nearest: `h100-sxm-80gb`")
    assert faults[1:] == [
        "scale_up: missing, and more than one device needs it",
        "scale_out: missing, and `nics_per_node` is not 0",
        "host_memory.value: `-2` must not be negative",
    ]
