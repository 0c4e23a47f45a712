"""Measured inference runs: rows resolve by the map, every figure is checked, what cannot be built is told."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from torchperf import configs, hardware
from torchperf.cli import main
from torchperf.graph.errors import TorchperfError
from torchperf.graph.validation import Skipped
from torchperf.validate import rows
from torchperf.validate.inference import settings_of, validate_inference
from torchperf.validate.inference_degrees import degrees_of
from torchperf.validate.inference_map import load_map
from torchperf.validate.inference_predict import InferencePrediction, Predictor, system_of
from torchperf.validate.inference_rows import COLUMNS, InferenceCase, case_of

SHARED = Path(__file__).parents[3] / "shared" / "validation" / "inference.csv"
COLUMN_NAMES = ["id", *sorted(COLUMNS)]
NEMO = {
    "id": "inf0001", "source_note": "NeMo/TRT-LLM doc table", "model": "Llama-2-7B", "gpu": "A100-SXM4-80GB",
    "num_gpus": "2", "tp": "2", "pp": "1", "precision": "w16/kv16/c16", "batch": "1", "input_len": "200",
    "output_len": "200", "framework": "NeMo", "measured_total_latency_ms": "1000", "notes": "",
}  # fmt: skip
AIC = {
    **NEMO, "id": "inf1300", "source_note": "aiconfigurator silicon_sample", "framework": "trtllm",
    "num_gpus": "8", "tp": "8", "batch": "16", "measured_total_latency_ms": "", "measured_tpot_ms": "20",
}  # fmt: skip


def _case(**cells: str) -> InferenceCase | Skipped:
    return case_of({**NEMO, **cells}, load_map())


def _built(**cells: str) -> InferenceCase:
    found = _case(**cells)
    assert isinstance(found, InferenceCase), found
    return found


def test_a_row_becomes_a_model_devices_a_runtime_and_a_measurement() -> None:
    case = _built()
    assert (case.key, case.model, case.gpu, case.runtime) == (
        "nemo", "llama-2-7b", "a100-sxm-80gb", "tensorrt-llm-2023",
    )  # fmt: skip
    assert (case.degrees.num_gpus, case.degrees.tp, case.serving, case.batch) == (2, 2, "static", 1)
    assert (case.weights, case.kv, case.measured) == ("fp16", "fp16", {"latency": 1.0})


def test_every_measured_column_is_a_metric() -> None:
    case = _built(measured_ttft_ms="12", measured_tpot_ms="8", measured_throughput_tok_s="200")
    assert case.measured == {"ttft": 0.012, "tpot": 0.008, "latency": 1.0, "throughput": 200.0}


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        ({"gpu": "TPU-v9"}, "no accelerator of the database"),
        ({"model": "Unheard-of"}, "no bundled config"),
        ({"model": "PaLM-540B"}, "no public class or config"),
        ({"precision": "w3"}, "is not mapped"),
        ({"batch": ""}, "states no batch"),
        ({"output_len": ""}, "states no output_len"),
        ({"source_note": "somewhere"}, "no source is mapped"),
        ({"tp": "4"}, "is not 2 GPUs"),
        ({"input_len": "long"}, "cannot be read"),
        ({"measured_total_latency_ms": ""}, "no figure of the row"),
        ({"measured_total_latency_ms": "-1"}, "not positive"),
    ],
)
def test_what_cannot_be_built_is_skipped_with_its_reason(cells: dict[str, str], reason: str) -> None:
    found = _case(**cells)
    assert isinstance(found, Skipped)
    assert reason in found.reason


def test_a_capped_board_is_the_boards_system_under_its_cap() -> None:
    case = _built()
    whole = system_of(case).accelerator
    capped = system_of(replace(case, watts=whole.tdp.value / 2)).accelerator
    assert capped.tdp.value == whole.tdp.value / 2
    assert capped.clock.value < whole.clock.value


def test_experts_of_a_group_are_not_counted_twice() -> None:
    """tp8 ep8 is a node of 8; attention-DP shares the clients out and leaves tp at 1."""
    found = degrees_of({**AIC, "num_gpus": "64", "tp": "8", "notes": "moe_tp=8 moe_ep=8"}, "aiconfigurator")
    assert (found.num_gpus, found.tp, found.ep, found.attention_dp) == (8, 8, 8, 1)
    assert found.assumptions
    shared = degrees_of({**AIC, "notes": "dp=8 moe_tp=1 moe_ep=8"}, "aiconfigurator")
    assert (shared.num_gpus, shared.tp, shared.attention_dp, shared.clients) == (8, 1, 8, 128)
    with pytest.raises(TorchperfError, match="contradict"):
        degrees_of({**AIC, "notes": "moe_tp=1 moe_ep=16"}, "aiconfigurator")


def test_the_map_names_only_what_exists() -> None:
    known = load_map()
    assert {gpu.name for gpu in known.gpus} <= set(hardware.accelerator_names())
    assert {model.config for model in known.models if model.config} <= set(configs.names())
    for name in {s.runtime for s in known.settings if s.runtime}:
        found = hardware.load_runtime(name)
        assert found.serving is not None or name in ("eager", "compile")
    for gpu in known.gpus:
        assert hardware.load_system(gpu.system).accelerator.name == gpu.name


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ('[[settings]]\nkey = ["y"]\nsource = "a"', "no source `y`"),
        ('[[settings]]\nkey = ["x"]\nsource = "a"\nserving = "soon"', "`soon` is not static"),
        ('[[settings]]\nkey = ["x"]\nsource = "a"\nmodel = "("', "no regular expression"),
        ('[[settings]]\nkey = ["x"]\nsource = "a"\nruntim = "b"', "unknown field `runtim`"),
        ('[[models]]\nmatch = "a"\nsource = "b"', "give `config` or `skip`"),
        ("[[", "is no TOML"),
    ],
)
def test_a_fault_of_the_map_names_file_and_key(tmp_path: Path, text: str, fault: str) -> None:
    path = tmp_path / "map.toml"
    empty = "gpus = []\n" + "".join(f"{t} = []\n" for t in ("models", "settings") if t not in text)
    path.write_text(empty + '[precisions]\n[[sources]]\nkey = "x"\ntitle = "x"\n' + text)
    with pytest.raises(TorchperfError) as caught:
        load_map(path)
    assert "map.toml" in str(caught.value)
    assert fault in str(caught.value)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "inference.csv"
    lines = [
        {**NEMO, "measured_ttft_ms": "50"},
        {**NEMO, "id": "inf0002", "output_len": "100"},
        {**NEMO, "id": "inf0003", "tp": "4"},
        {**NEMO, "id": "inf0004", "source_note": "gpt-fast README"},
    ]
    body = "\n".join(",".join(line.get(name, "") for name in COLUMN_NAMES) for line in lines)
    path.write_text(",".join(COLUMN_NAMES) + "\n" + body + "\n")
    return path


def _twice(case: InferenceCase) -> InferencePrediction:
    if case.output_len == 100:
        raise TorchperfError("no room")
    return InferencePrediction(2 * case.measured.get("ttft", 1.0), 1.0, 1.5 * case.measured["latency"], 1.0)


def test_every_figure_is_checked_or_its_row_skipped(table: Path) -> None:
    answer = validate_inference(table, predict=_twice).validation
    assert [(r.id, r.metric) for r in answer.rows] == [
        ("inf0001", "ttft"), ("inf0001", "latency"), ("inf0004", "latency"),
    ]  # fmt: skip
    assert [r.error for r in answer.rows] == pytest.approx([1.0, 0.5, 0.5])
    assert [(s.id, s.reason) for s in answer.skipped] == [
        ("inf0002", "no room"),
        ("inf0003", "tp 4 x pp 1 is not 2 GPUs"),
    ]
    spreads = {s.group: (s.rows, s.median) for s in answer.summary}
    assert spreads["latency, source nemo"] == (1, pytest.approx(0.5))
    assert spreads["latency, all"] == (2, pytest.approx(0.5))


def test_one_source_alone(table: Path) -> None:
    answer = validate_inference(table, key="gpt-fast", predict=_twice).validation
    assert [r.id for r in answer.rows] == ["inf0004"]
    with pytest.raises(TorchperfError, match="no row of `nobody`"):
        validate_inference(table, key="nobody", predict=_twice)


def test_two_rows_of_one_id_are_refused(table: Path) -> None:
    """Runs are told apart by their id: one would take the other's measured figures."""
    lines = table.read_text().splitlines()
    table.write_text("\n".join([*lines, "", lines[2]]) + "\n")
    with pytest.raises(TorchperfError, match="has 2 rows of one id") as caught:
        validate_inference(table, predict=_twice)
    assert caught.value.facts == (("id", "inf0002"), ("lines", "3 and 7"))


def test_a_file_without_rows_is_refused(table: Path) -> None:
    table.write_text(table.read_text().splitlines()[0] + "\n")
    with pytest.raises(TorchperfError, match="has a header and no rows"):
        validate_inference(table, predict=_twice)


def test_a_spec_that_no_row_has_is_refused(table: Path) -> None:
    with pytest.raises(TorchperfError, match="no row of `--spec C`") as caught:
        validate_inference(table, spec="C", predict=_twice)
    assert caught.value.facts == (("specs", "B"),)


def test_another_table_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.csv"
    path.write_text("id,m,n,k\n1,2,3,4\n")
    with pytest.raises(TorchperfError, match="no inference runs"):
        validate_inference(path, predict=_twice)


def test_the_command_prints_errors_and_writes_json(table: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.json"
    found = CliRunner().invoke(
        main, ["validate", "inference", "--data", str(table), "--key", "nemo", "--json", str(target)]
    )
    assert found.exit_code == 0, found.output
    assert "latency, source nemo" in found.output
    told = json.loads(target.read_text())
    assert {(row["id"], row["metric"]) for row in told["rows"]} == {
        ("inf0001", "ttft"), ("inf0001", "latency"), ("inf0002", "latency"),
    }  # fmt: skip
    assert all(row["predicted"] > 0 for row in told["rows"])


def test_a_figure_counts_what_its_source_counts() -> None:
    """Throughput with the prompt's tokens over the same latency; time of a token as latency over tokens."""
    price, case = Predictor(), _built()
    out, both = price(case), price(replace(case, throughput="total", tpot="latency"))
    assert both.throughput == pytest.approx(2 * out.throughput)
    assert both.tpot == pytest.approx(both.latency / 200)
    assert out.latency == pytest.approx(out.ttft + 199 * out.tpot)
    assert settings_of(case).startswith("llama-2-7b, 2x a100-sxm-80gb")


@pytest.mark.skipif(not SHARED.is_file(), reason="the measured runs are not here")
def test_every_row_of_the_measured_runs_has_a_case_or_a_reason() -> None:
    found = [case_of(cells, load_map()) for cells in rows.read(SHARED)]
    skipped = [case for case in found if isinstance(case, Skipped)]
    assert len(found) - len(skipped) > 1100
    assert not [case.reason for case in skipped if "no bundled config" in case.reason or "is not mapped" in case.reason]


@pytest.mark.skipif(not SHARED.is_file(), reason="the measured runs are not here")
def test_nemo_within_its_bar() -> None:
    answer = validate_inference(SHARED, key="nemo").validation
    errors = [abs(row.error) for row in answer.rows]
    assert len(errors) == 22
    assert sum(errors) / len(errors) <= 0.05
    assert max(errors) <= 0.12
