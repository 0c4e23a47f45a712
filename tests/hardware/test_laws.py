"""Laws over the whole table: each test lists every record that breaks it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass

import pytest

from torchperf.graph.system import Accelerator, Interconnect, Runtime, Sourced, System
from torchperf.hardware import (
    accelerator_names,
    interconnect_names,
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
        "a100-sxm-40gb", "a100-sxm-80gb", "h100-sxm-80gb", "h200-sxm-141gb", "b200-sxm-180gb", "mi300x",
        "l40s", "rtx-4090", "v100-sxm-32gb", "t4",
    }  # fmt: skip
    assert set(runtime_names()) >= {"eager", "compile"}
    for device in ACCELERATORS:
        assert system_for(device, 8).num_accelerators == 8


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


@pytest.mark.parametrize("ladder", [("bf16", "fp8", "fp4"), ("tf32", "bf16"), ("bf16", "int8")])
def test_a_narrower_type_is_never_slower(ladder: tuple[str, ...]) -> None:
    wrong = []
    for device in ACCELERATORS:
        rates = [device.peak_flops_per_s("matrix", d) for d in ladder if d in device.dtypes("matrix")]
        if rates != sorted(rates):
            wrong.append(f"{device.name}: {rates}")
    assert wrong == []


def test_the_matrix_ridge_at_16_bit_is_plausible() -> None:
    ridges = {d.name: d.peak_flops_per_s("matrix", "fp16") / d.memory.bandwidth.value for d in ACCELERATORS}
    assert {name: ridge for name, ridge in ridges.items() if not 10 <= ridge <= 2000} == {}


def test_the_matrix_engine_is_faster_than_the_vector_engine() -> None:
    wrong = [
        device.name
        for device in ACCELERATORS
        if device.peak_flops_per_s("matrix", "fp16") < device.peak_flops_per_s("vector", "fp32")
    ]
    assert wrong == []


def test_every_device_computes_fp32_and_half_precision_somewhere() -> None:
    for device in ACCELERATORS:
        assert device.peak_flops_per_s("vector", "fp32") > 0
        assert device.peak_flops_per_s("matrix", "fp16") > device.peak_flops_per_s("vector", "fp16")


def test_usable_memory_is_at_most_the_nominal_and_at_least_nine_tenths() -> None:
    shares = {d.name: d.memory.usable.value / d.memory.nominal.value for d in ACCELERATORS}
    assert {name: share for name, share in shares.items() if not 0.9 <= share <= 1} == {}


def test_the_last_cache_is_smaller_and_faster_than_memory() -> None:
    wrong = [
        device.name
        for device in ACCELERATORS
        if device.memory.l2.value > 0.02 * device.memory.nominal.value
        or (device.memory.l2_bandwidth and device.memory.l2_bandwidth.value < device.memory.bandwidth.value)
    ]
    assert wrong == []


def test_no_peak_is_sparse() -> None:
    conditions = {f"{d.name}: {p.dtype}": p.flops_per_s.condition for d in ACCELERATORS for p in d.peaks}
    assert {
        at: text for at, text in conditions.items() if not text.startswith("dense") or "spars" in text
    } == {}


def test_a_fit_agrees_with_the_constants_taken_from_it() -> None:
    wrong = []
    for device in ACCELERATORS:
        for fit in device.fits:
            if fit["floor_s"] != pytest.approx(device.kernel_floor.value):
                wrong.append(f"{device.name}: floor")
            if fit["e_m"] != device.efficiency("memory").value:
                wrong.append(f"{device.name}: e_m")
    assert wrong == []


def test_a_system_joins_its_devices_by_their_own_link() -> None:
    wrong = [
        system.name
        for system in SYSTEMS
        if system.scale_up is None
        or system.scale_up.bandwidth.value != system.accelerator.link_bandwidth.value
        or system.host_link != system.accelerator.host_link
    ]
    assert wrong == []


def test_a_pair_is_not_faster_than_all_links_together() -> None:
    wrong = [link.name for link in INTERCONNECTS if link.pair_bandwidth.value > link.bandwidth.value]
    assert wrong == []


def test_every_source_that_is_named_is_in_the_bibliography_and_every_entry_is_named() -> None:
    named = {value.source for _, value in EVERY} | {f.source for d in ACCELERATORS for f in d.fits}
    text = " ".join(value.condition for _, value in EVERY)
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
    wrong += [
        at for at, v in EVERY if v.source == "torchperf_derived" and (v.basis != "derived" or not v.condition)
    ]
    assert wrong == []


def test_every_value_is_in_base_units() -> None:
    assert {value.unit for _, value in EVERY} == {"FLOP/s", "B", "B/s", "s", "Hz", "W", "1"}


def test_nouns_are_frozen() -> None:
    for record in RECORDS:
        assert isinstance(hash(record), int)
    assert all(isinstance(device, Accelerator) for device in ACCELERATORS)
    assert all(isinstance(link, Interconnect) for link in INTERCONNECTS)
