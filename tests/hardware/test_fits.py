"""Fits: found by name, a device's own before those that it borrows, and a bad file told whole."""

from __future__ import annotations

import re
import shutil
import time
from pathlib import Path

import pytest

from torchperf.graph.errors import TorchperfError
from torchperf.hardware import accelerator_names, load_accelerator, load_interconnect, load_system
from torchperf.hardware.database import ENVIRONMENT, database
from torchperf.hardware.load import _family_of
from torchperf.hardware.schema import FAMILIES

TABLE = """
["{key}"]
parameters = {{ e_c = {value}, tau_s = 1.2e-06 }}
rows = "269 rows of somewhere"
range = "m 1 to 32768"
median_error = 0.059
p90_error = 0.158
source = "aiconfigurator"
"""


@pytest.fixture
def db(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the database without fits, in use."""
    root = tmp_path / "hardware_db"
    shutil.copytree(database().root, root, ignore=shutil.ignore_patterns("fits"))
    monkeypatch.setenv(ENVIRONMENT, str(root))
    return root


def write(root: Path, family: str, name: str, more: str = "", **fits: float) -> Path:
    """fits/<family>/<name>.toml with those keys (`__` is a dot) and shares of peak."""
    path = root / "fits" / family / f"{name}.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(TABLE.format(key=k.strip("_").replace("__", "."), value=v) for k, v in fits.items()) + more)
    return path


def test_a_fit_is_named_by_its_family_and_key(db: Path) -> None:
    write(db, "matmul", "h100-sxm-80gb", _16bit=0.88, fp8=0.7)
    write(db, "attention", "h100-sxm-80gb", prefill__16bit__vllm=0.6)
    device = load_accelerator("h100")
    assert [fit.name for fit in device.fits] == ["matmul.16bit", "matmul.fp8", "attention.prefill.16bit.vllm"]
    assert device.fit("matmul.16bit")["e_c"] == 0.88
    assert device.fit("matmul.16bit")["tau_s"] == pytest.approx(1.2e-6)
    assert device.fit("matmul.16bit").basis == "fitted"
    assert device.find_fit("matmul.int3") is None


def test_what_a_device_lacks_it_takes_as_assumed_from_the_first_that_has_it(db: Path) -> None:
    write(db, "matmul", "a40", _16bit=0.5)
    write(db, "matmul", "l40s", _16bit=0.6, fp8=0.7)
    write(db, "matmul", "rtx-a6000", int8_wo=0.8)
    device = load_accelerator("rtx-a6000")
    assert device.fits_from[:2] == ("a40", "l40s")
    assert {f.name: (f["e_c"], f.basis) for f in device.fits} == {
        "matmul.int8_wo": (0.8, "fitted"),
        "matmul.16bit": (0.5, "assumed"),
        "matmul.fp8": (0.7, "assumed"),
    }


def test_what_is_borrowed_is_not_borrowed_on(db: Path) -> None:
    write(db, "matmul", "a100-sxm-80gb", _16bit=0.9)
    assert load_accelerator("h200").fit("matmul.16bit").basis == "assumed"
    assert load_accelerator("p4").find_fit("matmul.16bit") is None  # from t4 and l40s, neither of which has one


def test_a_link_has_fits_of_its_collectives(db: Path) -> None:
    write(db, "collective", "nvlink4", all_reduce__nccl=0.8)
    link = load_interconnect("nvlink4")
    assert link.fit("collective.all_reduce.nccl")["e_c"] == 0.8
    assert load_interconnect("nvlink5").fit("collective.all_reduce.nccl").basis == "assumed"
    system = load_system("dgx-h100")
    assert system.scale_up == link


def test_a_fit_that_is_not_there_tells_those_that_are(db: Path) -> None:
    write(db, "matmul", "h100-sxm-80gb", _16bit=0.88)
    with pytest.raises(TorchperfError) as caught:
        load_accelerator("h100").fit("matmul.int3")
    assert str(caught.value) == (
        "`h100-sxm-80gb` has no fit `matmul.int3`\n"
        "  where  hardware_db/accelerators/h100-sxm-80gb.toml\n"
        "\n"
        "hint: it has `matmul.16bit`"
    )
    with pytest.raises(TorchperfError, match="give `fits_from` in that file, or fits/attention/h100-sxm-80gb"):
        load_accelerator("h100").fit("attention.decode.16bit.vllm")


def test_every_fault_of_a_fits_file_is_told_as_its_own(db: Path) -> None:
    write(db, "matmul", "h100-sxm-80gb", more='colour = 1\nbasis = "guess"\n', _16bit=-1)
    with pytest.raises(TorchperfError) as caught:
        load_accelerator("h100")
    file = "hardware_db/fits/matmul/h100-sxm-80gb.toml"
    assert str(caught.value) == (
        f"`{file}` has 3 faults\n"
        f"  fault  {file}:16bit.parameters.e_c: `-1.0` must be finite and not negative\n"
        f"  fault  {file}:16bit.basis: `guess` is none of `fitted`, `assumed`\n"
        f"  fault  {file}:16bit.colour: unknown key, known here: "
        "`parameters`, `rows`, `range`, `median_error`, `p90_error`, `source`, `basis`"
    )


def test_a_device_of_ones_own_may_borrow(db: Path, tmp_path: Path) -> None:
    write(db, "matmul", "h100-sxm-80gb", _16bit=0.88)
    text = (db / "accelerators" / "h100-sxm-80gb.toml").read_text()
    mine = tmp_path / "mine.toml"
    mine.write_text(text.replace('"h100-sxm-80gb"', '"mine"', 1).replace('["a100-sxm-80gb", ', '["h100-sxm-80gb", '))
    assert load_accelerator(str(mine)).fit("matmul.16bit").basis == "assumed"


def test_what_every_device_computes_has_constants_on_every_device() -> None:
    devices = [load_accelerator(name) for name in accelerator_names()]
    names = {fit.name for device in devices for fit in device.fits}
    special = re.compile(r"fp8|fp4|int[48]|sq|quantize|tf32")  # types that some devices do not have
    wrong = [
        f"{d.name}: {name}" for d in devices for name in names if not special.search(name) and not d.find_fit(name)
    ]
    assert wrong == []


def test_a_file_may_hold_its_fits_itself(db: Path, tmp_path: Path) -> None:
    write(db, "matmul", "h100-sxm-80gb", _16bit=0.88, fp8=0.7)
    text = (db / "accelerators" / "h100-sxm-80gb.toml").read_text()
    mine = tmp_path / "mine.toml"
    mine.write_text(text + TABLE.format(key="matmul.16bit", value=0.5).replace("[", "[fit.", 1))
    device = load_accelerator(str(mine))
    assert [(fit.name, fit["e_c"]) for fit in device.fits] == [("matmul.16bit", 0.5), ("matmul.fp8", 0.7)]


def test_a_device_with_all_its_fits_loads_in_15_ms(db: Path) -> None:
    keys = {f"key{i}": 0.5 for i in range(8)}
    for family in ("matmul", "attention", "memory"):
        for name in ("h100-sxm-80gb", "a100-sxm-80gb"):
            write(db, family, name, **keys)
    seconds = []
    for _ in range(7):
        _family_of.cache_clear()
        start = time.process_time()
        load_accelerator("h100")
        seconds.append(time.process_time() - start)
    assert min(seconds) < 0.015


def test_every_file_of_fits_belongs_to_a_record() -> None:
    root = database().root
    wrong = [
        path.relative_to(root).as_posix()
        for kind, families in FAMILIES.items()
        for family in families
        for path in (root / "fits" / family).glob("*.toml")
        if not (root / kind / path.name).is_file()
    ]
    wrong += [
        path.name
        for path in (root / "fits").glob("*")
        if path.name not in {family for families in FAMILIES.values() for family in families}
    ]
    assert wrong == []
