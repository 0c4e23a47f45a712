"""`torchperf capture`, `inspect`, `hardware` and `models`."""

from __future__ import annotations

import json
import sys
from types import ModuleType

import pytest

from torchperf import configs


def test_capture_saves_and_tells_on_stderr(run, loaded, tmp_path) -> None:
    file = tmp_path / "tiny.json"
    result = run("capture", "tiny", "-o", str(file), "--mode", "forward", "--seq-len", "64")
    assert result.exit_code == 0
    assert result.stdout == ""
    assert result.stderr == (
        f"warning: 1 guess made: `mask.all()` taken as true\nwrote `{file}`: 0 ops at any `batch`\n"
    )
    assert loaded.seen == [("load", ("tiny", "forward", {"seq": 64}, False), {})]
    assert b'"torchperf-graph"' in file.read_bytes()[:64]


def test_capture_tells_what_it_recorded_as_json(run, loaded, tmp_path) -> None:
    result = run("capture", "tiny", "-o", str(tmp_path / "tiny.json"), "--micro-batch", "2", "--json", "-")
    recorded = json.loads(result.stdout)
    assert recorded["model_class"] == "Tiny"
    assert recorded["sizes"] == {"batch": 1}
    assert recorded["graphs"] == [
        {"ops": 0, "blocks": 0, "ranges": [{"size": "batch", "low": 1, "high": None, "step": 0}]}
    ]
    assert loaded.seen[0][1][2] == {"batch": 2}


def test_capture_prints_text(run, loaded, monkeypatch) -> None:
    text = ModuleType("torchperf.graph.text")
    text.show = lambda capture: f"graph {capture.facts.model}"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torchperf.graph.text", text)
    assert run("capture", "tiny", "--text").stdout == "graph tiny\n"


def test_capture_has_one_stdout(run, loaded) -> None:
    assert run("capture", "tiny", "--text", "--json", "-").exit_code == 2
    assert loaded.seen == []


def test_capture_needs_a_place(run, loaded) -> None:
    result = run("capture", "tiny")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: give `-o FILE` to save the graph, or `--text` to print it\n")
    assert loaded.seen == []


def test_capture_into_a_file_in_place_of_a_folder(run, loaded, tmp_path) -> None:
    (tmp_path / "plain").write_text("a file")
    result = run("capture", "tiny", "-o", str(tmp_path / "plain" / "tiny.json"))
    assert result.exit_code == 2
    assert result.stderr.startswith("error: cannot write `")


def test_inspect(run, pipeline) -> None:
    result = run("inspect", "tiny", "--depth", "2", "--micro-batch", "4")
    assert result.stdout.startswith("tiny (Tiny): train, batch 1\n1,000 parameters\n")
    ((_, args, asked),) = pipeline.seen
    assert args == ("tiny",)
    assert asked == {
        "mode": "train",
        "seq_len": None,
        "micro_batch": 4,
        "depth": 2,
        "precision": "bf16-mixed",
    }
    assert json.loads(run("inspect", "tiny", "--json", "-").stdout)["parameters"] == 1000


def test_inspect_refuses_a_depth_of_zero(run, pipeline) -> None:
    assert run("inspect", "tiny", "--depth", "0").stderr.startswith("error: `--depth` is `0`: it must be at least 1")


def test_hardware_list(run) -> None:
    result = run("hardware", "list")
    assert result.exit_code == 0
    assert "h100-sxm-80gb" in result.stdout
    listed = json.loads(run("hardware", "list", "--json", "-").stdout)
    assert {"accelerators", "systems"} == set(listed)
    assert all(a["values"]["memory.usable"]["source"] for a in listed["accelerators"])


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("h100-sxm-80gb", "accelerator"),
        ("h100", "accelerator"),
        ("dgx-h100", "system"),
        ("nvlink4", "interconnect"),
        ("compile", "runtime"),
    ],
)
def test_hardware_show_finds_any_kind(run, name: str, kind: str) -> None:
    assert run("hardware", "show", name).exit_code == 0
    assert json.loads(run("hardware", "show", name, "--json", "-").stdout)["kind"] == kind


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        ("accelerators", "h100-sxm-80gb"),
        ("systems", "dgx-h100"),
        ("interconnects", "nvlink4"),
        ("runtimes", "eager"),
    ],
)
def test_hardware_show_takes_a_file_of_any_kind(run, folder: str, name: str) -> None:
    from torchperf.hardware.database import database

    file = database().root / folder / f"{name}.toml"
    shown = json.loads(run("hardware", "show", str(file), "--json", "-").stdout)
    assert shown["kind"] == folder.removesuffix("s")
    assert shown["name"] == name


@pytest.mark.parametrize("name", ["x100", "./x100.toml", ""])
def test_hardware_show_of_what_is_not_there(run, name: str) -> None:
    result = run("hardware", "show", name)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert "internal" not in result.stderr


def test_hardware_show_of_a_file_that_is_not_toml(run, tmp_path) -> None:
    file = tmp_path / "my.toml"
    file.write_text("name = [")
    result = run("hardware", "show", str(file))
    assert result.exit_code == 2
    assert f"`{file}` is not TOML" in result.stderr


def test_debug_reaches_a_command_of_a_group(run) -> None:
    assert "Traceback" in run("hardware", "show", "x100", "--debug").stderr


def test_models_lists_every_config(run) -> None:
    result = run("models")
    assert result.exit_code == 0
    assert all(name in result.stdout for name in configs.names())
    listed = json.loads(run("models", "--json", "-").stdout)
    assert {"name", "parameters", "source"} <= set(listed[0])
    assert next(m for m in listed if m["name"] == "gpt2")["parameters"] == 124_439_808
