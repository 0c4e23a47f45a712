"""Hardware, runtime and plan files in TOML that were damaged, made up, or written to do harm."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from fuzz_examples import share
from hypothesis import given
from hypothesis import strategies as st

import torchperf
from torchperf import hardware
from torchperf.graph.graph import Capture
from torchperf.hardware.database import database
from torchperf.partition.plan_file import plan_of
from torchperf.report.table import hardware_table

Attempt = Callable[[], AbstractContextManager[None]]


LITERALS = st.one_of(
    st.sampled_from(
        ["0", "-1", "1", "nan", "inf", "-inf", "1e400", "1e-320", "9" * 400, "9" * 5000, "0x1F", "true", '""', '"x"',
         "[]", "{}", "1979-05-27", "07:32:00", "[" * 3000 + "]" * 3000, '"' + "é" * 300 + '"', "'''\na\nb'''",
         '"__import__(\'os\').system(\'id\')"', '"!!python/object/apply:os.system [id]"', '"../../../etc/passwd"',
         '"./my.toml"', '"\\u0000"', "[1, 'a', {b = []}]", '"GB"', '"h100-sxm-80gb"', '"nvlink4"', "\x00", "${HOME}"]
    ),
    st.integers(-(2**70), 2**70).map(str),
    st.floats().map(repr),
)  # fmt: skip
RECORDS = (
    ("accelerators", "h100-sxm-80gb"), ("accelerators", "mi300x"), ("systems", "dgx-h100"),
    ("interconnects", "nvlink4"),
    ("runtimes", "eager"), ("runtimes", "vllm"), ("runtimes", "megatron-core"),
)  # fmt: skip
PLAN = """
[tp_plan]
"model.layers.*.self_attn.q_proj" = "colwise"
"model.layers.*.self_attn.o_proj" = "rowwise"
"model.layers.*.mlp.up_proj" = "colwise"
"model.layers.*.mlp.gate_proj" = "colwise"
"model.layers.*.mlp.down_proj" = "rowwise"
"""
_VALUE = re.compile(r"""= *("[^"]*"|'[^']*'|[^\s,{}\[\]]+)""")


@st.composite
def damaged(draw: st.DrawFn, good: str) -> bytes:
    """A TOML text with one to three values, lines or bytes changed."""
    text = good
    for _ in range(draw(st.integers(1, 3))):
        lines = text.split("\n")
        values = list(_VALUE.finditer(text))
        match draw(st.sampled_from(["value", "value", "value", "value", "drop", "double", "cut", "key"])):
            case "value" if values:
                found = draw(st.sampled_from(values))
                text = text[: found.start(1)] + draw(LITERALS) + text[found.end(1) :]
            case "drop":
                del lines[draw(st.integers(0, len(lines) - 1))]
                text = "\n".join(lines)
            case "double":
                text = "\n".join([*lines, draw(st.sampled_from(lines))])
            case "key":
                text = draw(st.sampled_from(["a = 1\n", "[x]\n", "[[peak]]\n", '"" = {}\n'])) + text
            case _:
                at = draw(st.integers(0, len(text)))
                text = text[:at] + draw(st.sampled_from(["", "]", "=", '"', "\x00", "\ud800"])) + text[at + 1 :]
    data = text.encode("utf-8", "surrogatepass")
    return data[: draw(st.integers(0, len(data)))] if draw(st.integers(0, 9)) == 0 else data


def text_of(record: tuple[str, str]) -> str:
    return (database().root / record[0] / f"{record[1]}.toml").read_text("utf-8")


@share(60)
@given(st.sampled_from(RECORDS).flatmap(lambda record: st.tuples(st.just(record[0]), damaged(text_of(record)))))
def test_records(attempt: Attempt, one_layer: Callable[[], Capture], tmp_path: Path, record: tuple[str, bytes]) -> None:
    """Checked, shown and priced with: a fault is told by file and key."""
    kind, file = record[0], tmp_path / "my.toml"
    file.write_bytes(record[1])
    with attempt():
        hardware.check_file(str(file))
    with attempt():
        load = {
            "accelerators": hardware.load_accelerator, "systems": hardware.load_system,
            "interconnects": hardware.load_interconnect, "runtimes": hardware.load_runtime,
        }[kind]  # fmt: skip
        hardware_table(load(str(file)))
    with attempt():
        if kind == "systems":
            torchperf.estimate(one_layer(), system=str(file), num_gpus=2, dp=2)
        elif kind == "runtimes":
            torchperf.estimate(one_layer(), gpu="h100-sxm-80gb", runtime=str(file))
        elif kind == "accelerators":
            torchperf.estimate(one_layer(), gpu=str(file), micro_batch=2)


@share(15)
@given(st.data())
def test_fits_and_classes(attempt: Attempt, tmp_path: Path, data: st.DataObject) -> None:
    """Fits, which a record brings in, and any other file that is handed to `hardware check`."""
    fits = sorted((database().root / "fits").rglob("*.toml"))
    file = tmp_path / data.draw(st.sampled_from(["matmul", "attention", "memory", "collective"])) / "my.toml"
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(data.draw(damaged(data.draw(st.sampled_from(fits)).read_text("utf-8"))))
    with attempt():
        hardware.check_file(str(file))


@share(25)
@given(st.data())
def test_plan_files(attempt: Attempt, tiny: Callable[[], Capture], tmp_path: Path, data: st.DataObject) -> None:
    """Tensor-parallel plans, as TOML or as what is said to be JSON."""
    file = tmp_path / data.draw(st.sampled_from(["plan.toml", "plan.toml", "plan.json"]))
    file.write_bytes(data.draw(damaged(PLAN)))
    with attempt():
        plan_of(tiny().graphs[0], str(file))
    with attempt():
        torchperf.estimate(tiny(), gpu="h100-sxm-80gb", num_gpus=2, tp=2, tp_plan=str(file), seq_len=64)
