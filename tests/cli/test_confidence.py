"""The error of measured runs beside each headline figure: the class, a wider one that is told as such, or none."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

import torchperf
from torchperf import confidence as rooms
from torchperf import hardware
from torchperf.confidence import METRICS, confidence
from torchperf.graph.confidence import ANY, ErrorClass
from torchperf.graph.errors import TorchperfError
from torchperf.graph.validation import Checked
from torchperf.hardware import database, validated
from torchperf.report.confidence import error, of_metric, sentence
from torchperf.validate.classes import as_toml, classes
from torchperf.validate.map_file import read
from torchperf.validate.training_map import FILE, TrainingMap

Run = Callable[..., Result]
KNOWN = (
    ErrorClass("step_time", "h100", "megatron", 12, 0.05, 0.11, ("a", "b"), 0.4, 0.5),
    ErrorClass("step_time", ANY, "megatron", 20, 0.06, 0.12, ("a", "b")),
    ErrorClass("step_time", "h100", ANY, 1, 0.07, 0.07, ("a",)),
    ErrorClass("memory", "h100", "megatron", 3, 0.02, 0.03, ("a",)),
)


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rooms, "validated", lambda kind: KNOWN if kind == "training" else ())


@pytest.mark.usefixtures("known")
@pytest.mark.parametrize(
    ("gpu", "runtime", "told", "said"),
    [
        ("h100", "megatron", "5.0 %",
         "median of 12 measured runs of h100 with megatron, p90 11.0 %; a plain roofline 40.0 %"),
        ("l4", "megatron", "none",
         "not validated: no measured run of l4 with megatron; 20 runs of megatron on other GPUs: median 6.0 %, "
         "p90 12.0 %"),
        ("h100", "eager", "none",
         "not validated: no measured run of h100 with eager; 1 run of h100 with other runtimes: median 7.0 %, "
         "p90 7.0 %"),
        ("l4", "eager", "none", "not validated: no measured run of l4 with eager"),
    ],
)  # fmt: skip
def test_a_class_or_a_wider_one_or_none(gpu: str, runtime: str, told: str, said: str) -> None:
    found = of_metric(confidence("train", gpu, runtime), "step_time")
    assert found is not None
    assert (error(found), sentence(found)) == (told, said)


@pytest.mark.parametrize("mode", METRICS)
def test_every_mode_has_its_figures(mode: str) -> None:
    found = confidence(mode, "no-such-gpu", "no-such-runtime")
    assert [c.metric for c in found] == list(METRICS[mode][1])
    assert all(c.found is None and not c.exact for c in found)


def test_errors_by_class() -> None:
    rows = [
        Checked("a-1", "a", "step_time", "s", 1.0, 1.1, 0.5), Checked("a-2", "a", "step_time", "s", 1.0, 0.7, 0.6),
        Checked("b-1", "b", "step_time", "s", 2.0, 2.0), Checked("b-2", "b", "memory", "B", 10.0, 12.0),
    ]  # fmt: skip
    gpu = {"a-1": "h100", "a-2": "h100", "b-1": "l4", "b-2": "l4"}
    found = {(c.metric, c.gpu, c.runtime): c for c in classes(rows, lambda row: (row.metric, gpu[row.id], "eager"))}
    one = found["step_time", "h100", "eager"]
    assert (one.rows, one.median_error, one.p90_error) == (2, pytest.approx(0.2), pytest.approx(0.28))
    assert (one.roofline_median, one.sources) == (pytest.approx(0.45), ("a",))
    every = found["step_time", ANY, "eager"]
    assert (every.rows, every.median_error, every.sources) == (3, pytest.approx(0.1), ("a", "b"))
    assert found["memory", "l4", ANY].median_error == pytest.approx(0.2)
    assert found["memory", "l4", "eager"].roofline_median is None


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """validated/training.toml of a database of its own."""
    shipped = Path(database.database().root)
    root = tmp_path / "hardware_db"
    root.mkdir()
    for entry in shipped.iterdir():
        if entry.name != "validated":
            (root / entry.name).symlink_to(entry)
    (root / "validated").mkdir()
    monkeypatch.setenv("TORCHPERF_HARDWARE_DB", str(root))
    return root / "validated" / "training.toml"


def test_the_file_reads_back(place: Path) -> None:
    place.write_text(as_toml("training", KNOWN))
    assert validated.validated("training") == KNOWN
    assert validated.validated("inference") == ()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("classes = 3", "cannot read `hardware_db/validated/training.toml`"),
        ("[[classes]]\nmetric = 'step_time'", "cannot read `hardware_db/validated/training.toml`"),
        (as_toml("training", KNOWN).replace("rows = 12", "rows = 0"), "has a class without rows, errors or sources"),
        (as_toml("training", KNOWN).replace('["a", "b"]', "[]"), "has a class without rows, errors or sources"),
    ],
)
def test_a_file_with_faults(place: Path, text: str, told: str) -> None:
    place.write_text(text)
    with pytest.raises(TorchperfError, match=told.split("`")[0]) as raised:
        validated.validated("training")
    assert told in str(raised.value)


@pytest.mark.parametrize("kind", validated.KINDS)
def test_the_shipped_file(kind: str) -> None:
    """It names accelerators and runtimes of the database, and sources that the map of the runs names."""
    found = validated.validated(kind)
    assert found
    assert {c.gpu for c in found} - {ANY} <= set(hardware.accelerator_names())
    assert {c.runtime for c in found} - {ANY} <= set(hardware.runtime_names())
    assert {c.metric for c in found} <= {metric for of, metrics in METRICS.values() if of == kind for metric in metrics}
    for c in found:
        if ANY not in (c.gpu, c.runtime):
            assert {(ANY, c.runtime), (c.gpu, ANY)} <= {(o.gpu, o.runtime) for o in found if o.metric == c.metric}
    folder = Path(torchperf.__file__).parent / "validate"
    text = (folder / f"{kind}_map.toml").read_text()
    assert all(f'"{source}"' in text for c in found for source in c.sources)


def test_the_shipped_errors_are_those_of_the_measured_runs() -> None:
    """A few rows priced again: their errors lie within what the file says of their class."""
    data = Path(torchperf.__file__).parents[2] / "shared" / "validation" / "training.csv"
    if not data.is_file():
        pytest.skip("the table of measured runs is not here")
    from torchperf.validate.training import error_classes, validate_training

    found = validate_training(data, key="titan", spec="A")
    known = {(c.metric, c.gpu, c.runtime): c for c in validated.validated("training")}
    again = [c for c in error_classes(found) if ANY not in (c.gpu, c.runtime)]
    assert again
    for c in again:
        kept = known[c.metric, c.gpu, c.runtime]
        if kept.rows == c.rows:
            assert c.median_error == pytest.approx(kept.median_error, abs=1e-3)
        else:
            assert c.rows < kept.rows


def test_beside_the_figures(command: Run, tmp_path: Path) -> None:
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 64, "hidden_size": 32,
        "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
        "max_position_embeddings": 256,
    }  # fmt: skip
    model = tmp_path / "config.json"
    model.write_text(json.dumps(config))
    fsdp = {(c.metric, c.gpu, c.runtime): c for c in validated.validated("training")}
    kept = fsdp["step_time", "h100-sxm-80gb", "megatron-core"]
    asked = ("estimate", model, "--gpu", "h100-sxm-80gb", "--num-gpus", 2, "--runtime", "megatron-core")
    text = " ".join(command(*asked).stdout.split())
    assert f"median of {kept.rows} measured runs of h100-sxm-80gb with megatron-core" in text
    assert "validated error" in text
    answer = json.loads(command(*asked, "--json", "-").stdout)["validated"]
    assert answer["step_time"]["median_error"] == kept.median_error
    assert answer["memory"]["exact"]
    alone = " ".join(command("estimate", model, "--gpu", "l4", "--runtime", "eager").stdout.split())
    assert "not validated: no measured run of l4 with eager" in alone
    served = command(
        "estimate", model, "--gpu", "l4", "--mode", "inference", "--input-len", 16, "--output-len", 8, "--runtime",
        "fastertransformer",
    ).stdout  # fmt: skip
    assert "TPOT: not validated: no measured run of l4 with fastertransformer" in " ".join(served.split())
    assert "no prefill pass than" in " ".join(served.split())


def test_write_needs_a_file(command: Run) -> None:
    result = command("validate", "training", "--data", "runs.csv", "--write", "-")
    assert (result.exit_code, result.stderr.splitlines()[0]) == (2, "error: `--write` needs a file")


def test_write_keeps_the_classes(command: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torchperf.validate import training
    from torchperf.validate.training_predict import Prediction

    shared = Path(torchperf.__file__).parents[2] / "shared" / "validation" / "training.csv"
    if not shared.is_file():
        pytest.skip("the table of measured runs is not here")
    monkeypatch.setattr(training.Predictor, "__call__", lambda self, case: Prediction(1.0, 1.0, 1.0, 1.0, 0.5))
    path = tmp_path / "errors.toml"
    result = command("validate", "training", "--data", shared, "--key", "titan", "--write", path)
    assert result.exit_code == 0, result.output
    rows = tomllib.loads(path.read_text())["classes"]
    assert {row["metric"] for row in rows} == {"step_time", "memory"}
    assert all(row["sources"] == ["titan"] for row in rows)
    assert read(FILE, TrainingMap).settings
