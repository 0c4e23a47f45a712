"""One test for each way a file can be wrong; and a file that is wrong in several ways tells all of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from torchperf.graph.errors import TorchperfError
from torchperf.hardware import load_accelerator, load_interconnect, load_runtime

Spoil = Callable[..., str]
BANDWIDTH = 'bandwidth = { value = 3350, unit = "GB/s", basis = "datasheet", source = "hpctech_h100"'


def faults(path: str, load: Callable[[str], object] = load_accelerator) -> list[str]:
    """The faults told for a file, without its name."""
    with pytest.raises(TorchperfError) as caught:
        load(path)
    assert all(label == "fault" and value.startswith(f"{path}:") for label, value in caught.value.facts)
    return [value.removeprefix(f"{path}:") for _, value in caught.value.facts]


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        (
            "[peak.matrix]\n",
            "[peak.matrix]\nbf17 = 1\n",
            "peak.matrix.bf17: unknown key, known here: `fp64`, `fp32`, ",
        ),
        ('vendor = "NVIDIA"\n', "", "vendor: missing"),
        ('vendor = "NVIDIA"', 'vendor = " "', "vendor: empty"),
        ("year = 2022", 'year = "2022"', "year: must be a whole number, not `'2022'`"),
        ("year = 2022", "year = true", "year: must be a whole number, not `True`"),
        ('aliases = ["h100",', "aliases = [100,", "aliases: must be a list of texts"),
        (
            'aliases = ["h100",',
            'aliases = ["H 100",',
            "aliases: `H 100` must be lower case with `-`, such as `h-100`",
        ),
        ('host_link = "pcie5"', 'host_link = "pcie9"', "host_link: unknown interconnect `pcie9` (nearest: "),
        (
            'source = "hpctech_h100"',
            'source = "nobody"',
            "memory.nominal.source: `nobody` is not in sources.bib",
        ),
        (', source = "hpctech_h100"', "", "memory.nominal.source: missing"),
        (', unit = "GiB"', "", "memory.nominal.unit: missing"),
        ('unit = "GB/s"', 'unit = "GB"', "link_bandwidth.unit: `GB` is no unit of bandwidth: `B/s`, "),
        ("value = 3350", 'value = "3350"', "memory.bandwidth.value: must be a number, not `'3350'`"),
        ("value = 3350", "value = -3350", "memory.bandwidth.value: `-3350` must not be negative"),
        ("value = 3350", "value = inf", "memory.bandwidth.value: `inf` must be finite"),
        ("value = 3350", "value = nan", "memory.bandwidth.value: `nan` must be finite"),
        ("value = 3350", "value = 0", "memory.bandwidth.value: `0` must not be zero"),
        ("value = 132,", "value = 132.5,", "num_units.value: `132.5` must be whole"),
        ("value = 0.86,", "value = 1.86,", "efficiency.memory.default.value: `1.86` must be at most 1"),
        (BANDWIDTH, "bandwidth = 3350 #", "memory.bandwidth: must be a table, not `3350`"),
        ('condition = "dense", ', "", "peak.matrix.fp64.condition: missing"),
        (
            'scope = "per_direction"',
            'scope = "per_node"',
            "link_bandwidth.scope: `per_node` is none of `per_direction`",
        ),
        ('basis = "whitepaper"', 'basis = "guess"', "num_units.basis: `guess` is none of `datasheet`, "),
        ("[efficiency.vector]", "[efficiency.victor]", "efficiency.vector: missing"),
        (
            'fits_from = ["a100-sxm-80gb", "a100-pcie-80gb"]',
            'fits_from = ["a101"]',
            "fits_from: unknown accelerator `a101` (nearest: ",
        ),
        (
            'fits_from = ["a100-sxm-80gb", "a100-pcie-80gb"]',
            'fits_from = "a100-sxm-80gb"',
            "fits_from: must be a list, not ",
        ),
        (
            "{ value = 3350",
            "{ note = 1, value = 3350",
            "memory.bandwidth.note: unknown key, known here: `value`, ",
        ),
    ],
)
def test_one_fault(spoiled: Spoil, old: str, new: str, fault: str) -> None:
    told = faults(spoiled((old, new)))
    assert told[0].startswith(fault)
    assert len(told) == (2 if "victor" in new else 1)  # a key misspelled is missing, and unknown


def test_all_faults_of_a_file_are_told_at_once(spoiled: Spoil) -> None:
    path = spoiled(
        ("year = 2022", 'year = "2022"'),
        ('unit = "W"', 'unit = "GB"'),
        ("value = 989.4", "value = -989.4"),
        ('source = "hpctech_h100"', 'source = "nobody"'),
        ("[memory]\n", "[memory]\ncolour = 1\n"),
    )
    with pytest.raises(TorchperfError) as caught:
        load_accelerator(path)
    assert str(caught.value) == (
        f"`{path}` has 5 faults\n"
        f"  fault  {path}:peak.matrix.bf16.value: `-989.4` must not be negative\n"
        f"  fault  {path}:year: must be a whole number, not `'2022'`\n"
        f"  fault  {path}:memory.nominal.source: `nobody` is not in sources.bib\n"
        f"  fault  {path}:tdp.unit: `GB` is no unit of power: `W`, `kW`\n"
        f"  fault  {path}:memory.colour: unknown key, known here: "
        "`nominal`, `usable`, `bandwidth`, `l2`, `l2_bandwidth`"
    )


def test_malformed_toml_names_its_line(spoiled: Spoil) -> None:
    path = spoiled(("year = 2022", "year = "))
    with pytest.raises(TorchperfError, match=r"my\.toml` is not TOML: invalid value \(at line 5, column 8\)"):
        load_accelerator(path)


def test_a_key_given_twice_is_malformed(spoiled: Spoil) -> None:
    with pytest.raises(TorchperfError, match="is not TOML: cannot overwrite a value"):
        load_accelerator(spoiled(("year = 2022", "year = 2022\nyear = 2023")))


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "my.toml"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(TorchperfError, match=r"`.*my\.toml` is not TOML: not UTF-8"):
        load_accelerator(str(path))


def test_an_empty_file_lacks_every_key(tmp_path: Path) -> None:
    path = tmp_path / "my.toml"
    path.write_text("", encoding="utf-8")
    told = faults(str(path))
    assert {"name: missing", "peak: missing", "memory: missing", "tdp: missing"} <= set(told)


def test_an_interconnect_counts_ranks(spoiled: Spoil) -> None:
    path = spoiled(("\n2 = {", "\none = {"), kind="interconnects", name="nvlink4")
    assert faults(path, load_interconnect) == ["efficiency.all_reduce.one: must be a number of ranks, 2 or more"]


def test_an_interconnect_knows_its_collectives(spoiled: Spoil) -> None:
    path = spoiled(("[efficiency.all_reduce]", "[efficiency.allreduce]"), kind="interconnects", name="nvlink4")
    assert faults(path, load_interconnect)[0].startswith("efficiency.allreduce: unknown key, known here: `default`")


def test_a_runtime_says_true_or_false_and_a_known_attention(spoiled: Spoil) -> None:
    changes = (("fused = false", "fused = 0"), ('attention = "flash"', 'attention = "fast"'))
    path = spoiled(*changes, kind="runtimes", name="eager")
    assert faults(path, load_runtime) == [
        "fused: must be true or false, not `0`",
        "attention: `fast` is none of `flash`, `unfused`",
    ]
