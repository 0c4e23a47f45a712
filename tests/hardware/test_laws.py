"""Laws over the whole table: each test lists every record that breaks it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path

import pytest

import torchperf
from torchperf.graph.runtime import Runtime
from torchperf.graph.system import Accelerator, Interconnect, Sourced, System
from torchperf.hardware import (
    accelerator_names,
    interconnect_names,
    laws,
    load_accelerator,
    load_interconnect,
    load_runtime,
    load_system,
    runtime_names,
    system_for,
    system_names,
)
from torchperf.hardware.database import bib_keys, database, normal

ACCELERATORS = [load_accelerator(name) for name in accelerator_names()]
INTERCONNECTS = [load_interconnect(name) for name in interconnect_names()]
SYSTEMS = [load_system(name) for name in system_names()]
RUNTIMES = [load_runtime(name) for name in runtime_names()]
Noun = Accelerator | Interconnect | System | Runtime
RECORDS: list[Noun] = [*ACCELERATORS, *INTERCONNECTS, *SYSTEMS, *RUNTIMES]
BIB = (database().root / "sources.bib").read_text(encoding="utf-8")


def sourced(noun: object, at: str = "") -> Iterator[tuple[str, Sourced]]:
    """Every Sourced below a noun, with its path."""
    if isinstance(noun, Sourced):
        yield at, noun
    elif is_dataclass(noun):
        for field in fields(noun):
            yield from sourced(getattr(noun, field.name), f"{at}.{field.name}" if at else field.name)
    elif isinstance(noun, tuple):
        for item in noun:
            yield from sourced(item, at)


EVERY = [(f"{record.name}: {at}", value) for record in RECORDS for at, value in sourced(record)]


def test_the_devices_and_systems_that_are_promised_are_there() -> None:
    assert set(accelerator_names()) >= {
        "p100-pcie-16gb", "p4", "v100-sxm-32gb", "v100-sxm3-32gb", "v100-pcie-32gb", "t4",
        "a100-sxm-40gb", "a100-sxm-80gb", "a100-pcie-40gb", "a100-pcie-80gb", "a800-sxm-80gb",
        "a40", "a10g", "rtx-a6000", "rtx-3090", "l4", "l40s", "rtx-6000-ada", "rtx-4080", "rtx-4090", "rtx-5090",
        "h100-sxm-80gb", "h100-sxm-96gb", "h100-pcie-80gb", "h100-nvl-94gb", "gh200-96gb", "h200-sxm-141gb",
        "b200-sxm-180gb", "gb200", "b300-sxm", "gb300",
        "mi100", "mi210", "mi250", "mi250x", "mi300x", "mi325x", "mi355x",
        "tpu-v4", "tpu-v5p", "tpu-v6e", "trainium2", "gaudi3", "arc-pro-b60",
    }  # fmt: skip
    assert set(runtime_names()) >= {"eager", "compile"}


def test_every_device_has_one_system_to_grow_into() -> None:
    for device in ACCELERATORS:
        assert system_for(device, 8).accelerator == device
    assert {s.name: s.num_accelerators for s in SYSTEMS if s.num_accelerators not in (4, 8)} == {
        "dgx-2": 16, "gb200-nvl72": 72, "gb300-nvl72": 72, "h100-nvl-pair": 2, "trn2-16chip": 16,
        "tpu-v4-pod": 4096, "tpu-v5p-pod": 8960, "tpu-v6e-pod": 256,
    }  # fmt: skip


def test_a_file_bears_the_name_of_its_record() -> None:
    wrong = [record.file for record in RECORDS if not record.file.endswith(f"/{record.name}.toml")]
    assert wrong == []


def test_an_alias_is_nobodys_name() -> None:
    kinds: list[list[Noun]] = [[*ACCELERATORS], [*INTERCONNECTS], [*SYSTEMS], [*RUNTIMES]]
    records = [(kind, record) for kind in kinds for record in kind]
    wrong = [
        f"{record.name}: {alias}"
        for kind, record in records
        for alias in record.aliases
        if alias in {other.name for other in kind} or alias != normal(alias)
    ]
    assert wrong == []


@pytest.mark.parametrize("law", laws.DEVICE_LAWS, ids=lambda law: law.__name__)
def test_no_device_breaks(law: Callable[[Accelerator], Iterator[tuple[str, str]]]) -> None:
    assert [(device.name, *fault) for device in ACCELERATORS for fault in law(device)] == []


def test_no_link_has_a_pair_that_is_faster_than_all_links_together() -> None:
    assert [(link.name, *fault) for link in INTERCONNECTS for fault in laws.broken(link)] == []


def test_the_exceptions_from_the_order_are_these() -> None:
    stated = [f"{d.name}: {p.dtype}" for d in ACCELERATORS for p in d.peaks if "exception" in p.flops_per_s.condition]
    assert stated == ["b300-sxm: int8", "gaudi3: fp8", "gb300: int8", "tpu-v5p: fp8", "tpu-v6e: fp8"]


def test_the_matrix_engine_is_faster_than_the_vector_engine() -> None:
    wrong = [
        f"{d.name}: {dtype}"
        for d in ACCELERATORS
        for dtype in ("bf16", "fp16")
        if dtype in d.dtypes("matrix") and d.peak("matrix", dtype).value < 2 * d.peak("vector", "fp32").value * 0.99
    ]
    assert wrong == []


def test_every_device_computes_fp32_and_half_precision_somewhere() -> None:
    for device in ACCELERATORS:
        assert device.peak_flops_per_s("vector", "fp32") > 0
        assert {"bf16", "fp16"} & {*device.dtypes("matrix"), *device.dtypes("vector")}
    assert {d.name for d in ACCELERATORS if not d.dtypes("matrix")} == {"p100-pcie-16gb", "p4"}


def test_the_clock_is_the_one_of_the_matrix_peak() -> None:
    """FLOPs a unit and cycle come out as a power of two, or near one, on NVIDIA's data-centre devices."""
    rates = {
        d.name: d.peak("matrix", "fp16").value / d.num_units.value / d.clock.value
        for d in ACCELERATORS
        if d.architecture in ("Volta", "Ampere", "Hopper", "Blackwell", "Blackwell Ultra") and "rtx" not in d.name
    }
    wide = {"Hopper": 4096, "Blackwell": 8192, "Blackwell Ultra": 8192}
    wrong = {}
    for device in ACCELERATORS:
        if device.name in rates:
            narrow = 2048 if device.name.startswith(("a100", "a800")) else 1024
            wanted = wide.get(device.architecture, narrow)
            if not 0.97 <= rates[device.name] / wanted <= 1.03 and device.name != "a10g":
                wrong[device.name] = rates[device.name]
    assert wrong == {}


def test_a_system_joins_its_devices_by_their_own_link() -> None:
    wrong = [
        system.name
        for system in SYSTEMS
        if system.scale_up is None
        or system.scale_up.bandwidth.value != system.accelerator.link_bandwidth.value
        or system.host_link != system.accelerator.host_link
    ]
    assert wrong == []


def test_every_source_that_is_named_is_in_the_bibliography_and_every_entry_is_named() -> None:
    named = {value.source for _, value in EVERY} | {f.source for d in (*ACCELERATORS, *INTERCONNECTS) for f in d.fits}
    named |= {r.serving.constants.source for r in RUNTIMES if r.serving}
    text = " ".join(value.condition for _, value in EVERY)
    text += " ".join(path.read_text() for path in Path(torchperf.__file__).parent.rglob("*.py"))  # formulas cite too
    assert named - bib_keys(BIB) == set()
    assert {key for key in bib_keys(BIB) - named if key not in text} == set()


def test_every_entry_tells_title_place_year_and_what_was_read() -> None:
    entries = re.split(r"^@\w+\{", BIB, flags=re.MULTILINE)[1:]
    wrong = [
        entry.split(",")[0]
        for entry in entries
        for field in ("title = ", "year = ", "note = ")
        if field not in entry or ("url = " not in entry and "howpublished = " not in entry)
    ]
    assert len(entries) == len(bib_keys(BIB))
    assert wrong == []


def test_what_has_no_source_is_assumed() -> None:
    wrong = [at for at, v in EVERY if v.source == "torchperf_assumption" and v.basis != "assumed"]
    wrong += [at for at, v in EVERY if v.source == "torchperf_derived" and (v.basis != "derived" or not v.condition)]
    assert wrong == []


def test_every_value_is_in_base_units() -> None:
    assert {value.unit for _, value in EVERY} == {"FLOP/s", "B", "B/s", "s", "Hz", "W", "1"}


def test_nouns_are_frozen() -> None:
    for record in RECORDS:
        assert isinstance(hash(record), int)
    assert all(isinstance(device, Accelerator) for device in ACCELERATORS)
    assert all(isinstance(link, Interconnect) for link in INTERCONNECTS)
