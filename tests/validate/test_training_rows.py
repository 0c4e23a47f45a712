"""Measured training runs: rows resolve by the map, figures convert by the publishers' formulas, errors are told."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from torchperf import hardware
from torchperf.cli import main
from torchperf.frontend.modules.spec import num_parameters
from torchperf.graph.errors import TorchperfError
from torchperf.graph.validation import Skipped
from torchperf.validate import rows, training_formulas
from torchperf.validate.training import validate_training
from torchperf.validate.training_formulas import FORMULAS, Dims
from torchperf.validate.training_map import load_map
from torchperf.validate.training_models import padded
from torchperf.validate.training_predict import Prediction, Predictor, system_of
from torchperf.validate.training_rows import COLUMNS, TrainingCase, case_of, split_by_cost, split_with_ends

SHARED = Path(__file__).parents[3] / "shared" / "validation" / "training.csv"
COLUMN_NAMES = ["id", *sorted(COLUMNS | {"layers", "hidden", "heads", "kv_heads", "ffn_hidden", "vocab", "params_b"})]
GPT = {
    "id": "kor22-001", "model": "Megatron-GPT-22B", "params_b": "22", "layers": "48", "hidden": "6144", "heads": "64",
    "kv_heads": "64", "ffn_hidden": "24576", "vocab": "", "seq_len": "2048", "gpu": "A100-SXM-80GB", "num_gpus": "8",
    "tp": "8", "pp": "1", "dp": "1", "cp": "1", "sequence_parallel": "0", "micro_batch": "4", "global_batch": "4",
    "precision": "fp16", "recompute": "full", "measured_step_time_s": "1.42", "notes": "spec=A; no flash attention",
}  # fmt: skip


def _case(**cells: str) -> TrainingCase | Skipped:
    return case_of({**GPT, **cells}, load_map())


def _built(**cells: str) -> TrainingCase:
    found = _case(**cells)
    assert isinstance(found, TrainingCase), found
    return found


def test_a_row_becomes_a_plan_a_model_and_a_measurement() -> None:
    case = _built()
    assert (case.plan.tp, case.plan.dp, case.plan.micro_batches, case.plan.recompute) == (8, 1, 1, "full")
    assert (case.gpu, case.runtime, case.precision, case.attention) == (
        "a100-sxm-80gb", "megatron-2022", "fp16-mixed", "unfused",
    )  # fmt: skip
    assert case.model.contents["vocab"] == 51200
    assert (case.step_time_s, case.spec) == (1.42, "A")


def test_a_cell_of_the_row_stands_before_the_map() -> None:
    assert _built(vocab="64000").model.contents["vocab"] == padded(64000, 128 * 8)


def test_tokens_a_second_become_seconds_of_a_step() -> None:
    case = _built(measured_step_time_s="", measured_tokens_per_s_per_gpu="500")
    assert case.step_time_s == pytest.approx(4 * 2048 / (8 * 500))


def test_a_rate_of_flops_becomes_seconds_by_the_publishers_formula() -> None:
    """96 B s l h^2 (1 + s/6h + V/16lh) / (N X), row 145B of table 1: 148 TFLOP/s on 1,536 GPUs."""
    case = _built(
        id="nar21-007", layers="80", hidden="12288", heads="96", kv_heads="96", ffn_hidden="49152", num_gpus="1536",
        pp="8", dp="24", micro_batch="2", global_batch="2304", measured_step_time_s="", measured_tflops_per_gpu="148",
    )  # fmt: skip
    l, h, s, v = 80, 12288, 2048, 51200  # noqa: E741
    flops = 96 * 2304 * s * l * h**2 * (1 + s / (6 * h) + v / (16 * l * h))
    assert case.step_time_s == pytest.approx(flops / (1536 * 148e12))
    assert (case.plan.virtual_stages, case.plan.micro_batches) == (2, 48)


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        ({"gpu": "TPU-v9"}, "no accelerator of the database"),
        ({"model": "Unheard-of"}, "no model is mapped"),
        ({"precision": "int3"}, "is not mapped"),
        ({"micro_batch": ""}, "states no micro_batch"),
        ({"id": "nobody-001"}, "no runtime is mapped"),
        ({"tp": "3"}, "does not fit the plan"),
        ({"layers": ""}, "states no layers"),
        ({"hidden": "wide"}, "cannot be read"),
        ({"id": "llama1-001"}, "no parallelism"),
        ({"measured_memory_gib_per_gpu": "60"}, "memory `kor22` measured is not mapped"),
    ],
)
def test_what_cannot_be_built_is_skipped_with_its_reason(cells: dict[str, str], reason: str) -> None:
    found = _case(**cells)
    assert isinstance(found, Skipped)
    assert reason in found.reason


def test_embedding_and_head_count_as_layers_where_the_run_split_so() -> None:
    assert split_with_ends(126, 8) == (15, 16, 16, 16, 16, 16, 16, 15)
    assert sum(split_with_ends(94, 32)) == 94
    assert split_with_ends(126, 9) == ()


def test_nanotron_deals_out_layers_by_cost() -> None:
    """Llama-3 8B over 8 stages: the head is worth 2.2 layers; 5, 4, 4 layers on the first ranks as nanotron prints."""
    dims = Dims(1, 1, 32, 4096, 32, 8, 128, 14336, 128256, True)
    assert split_by_cost(dims, 8) == (5, 4, 4, 5, 4, 4, 4, 2)
    assert split_by_cost(dims, 1) == (32,)


CI = {
    "id": "mlmci-099", "model": "Megatron-CI tiny", "params_b": "", "layers": "4", "hidden": "512", "heads": "8",
    "kv_heads": "8", "ffn_hidden": "2048", "seq_len": "1024", "gpu": "H100-SXM-80GB", "num_gpus": "2", "tp": "1",
    "pp": "2", "micro_batch": "1", "global_batch": "4", "precision": "bf16", "recompute": "none",
    "measured_memory_gib_per_gpu": "2", "notes": "spec=A; tiny model",
}  # fmt: skip


def test_memory_is_of_the_stage_that_was_read() -> None:
    """The last rank writes Megatron-LM's tensorboard; its head outweighs the first stage's second micro-batch."""
    case = _built(**CI)
    assert (case.memory_kind, case.memory_of) == ("allocated", "last")
    price = Predictor()
    first, last, most = (price(replace(case, memory_of=of)).allocated for of in ("first", "last", ""))
    assert first < last == most


DIMS = Dims(
    batch=8, seq=2048, layers=4, hidden=512, heads=8, kv_heads=8, head_dim=64, ffn=2048, vocab=1024, gated=False
)


def test_formulas_agree_where_they_count_the_same() -> None:
    """Without recompute Narayanan's is 3/4 but for the head; Megatron's and nanotron's are Korthikanti's."""
    model = training_formulas.korthikanti(DIMS)
    head = 6 * 8 * 2048 * 512 * 1024
    assert training_formulas.narayanan(DIMS) - head == pytest.approx((model - head) * 4 / 3)
    assert training_formulas.megatron(DIMS) == pytest.approx(model)
    assert training_formulas.nemo(DIMS) == pytest.approx(model)
    gated = replace(DIMS, gated=True)
    assert training_formulas.nanotron(gated) == pytest.approx(training_formulas.megatron(gated))


def test_the_causal_formula_leaves_out_half_of_the_scores() -> None:
    scores = 12 * 8 * 2048 * 4 * 512 * 2048
    assert training_formulas.megatron(DIMS) - training_formulas.megatron_causal(DIMS) == pytest.approx(scores / 2)


def test_the_map_names_only_what_exists() -> None:
    known = load_map()
    assert {gpu.name for gpu in known.gpus} <= set(hardware.accelerator_names())
    assert {gpu.system for gpu in known.gpus} <= set(hardware.system_names())
    assert {s.network for s in known.settings if s.network} <= set(hardware.interconnect_names())
    assert {s.formula for s in known.settings if s.formula} <= set(FORMULAS)
    for gpu in known.gpus:
        assert hardware.load_system(gpu.system).accelerator.name == gpu.name


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ('[[settings]]\nkey = ["x"]\nsource = ""', r"settings.*source.*length"),
        ('[[settings]]\nkey = ["x"]\nsource = "a"\nruntim = "y"', r"settings.*unknown field `runtim`"),
        ('[[settings]]\nkey = ["x"]\nsource = "a"\nformula = "guess"', r"settings\[0\].formula: no `guess`"),
        ('[[settings]]\nkey = ["x"]\nsource = "a"\nmodel = "("', "no regular expression"),
        ('[[settings]]\nkey = ["x"]\nsource = "a"\nmemory = "ram"', r"settings\[0\].memory"),
        ('[[settings]]\nkey = ["x"]\nsource = "a"\nmemory_of = "middle"', r"settings\[0\].memory_of"),
        ("[[", "is no TOML"),
    ],
)
def test_a_fault_of_the_map_names_file_and_key(tmp_path: Path, text: str, fault: str) -> None:
    path = tmp_path / "map.toml"
    empty = "gpus = []\nmodels = []\n" + ("" if "settings" in text else "settings = []\n") + "[precisions]\n"
    path.write_text(empty + text)
    with pytest.raises(TorchperfError) as caught:
        load_map(path)
    told = str(caught.value)
    assert "map.toml" in told
    import re

    assert re.search(fault, told, re.S | re.I)


def test_the_network_of_a_source_stands_before_the_systems() -> None:
    case = _built()
    assert system_of(case).nics_per_node.value == 8
    other = system_of(replace(case, network="ethernet-100g", nics_per_node=4.0))
    assert (other.scale_out and other.scale_out.name, other.nics_per_node.value) == ("ethernet-100g", 4.0)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "training.csv"
    lines = [
        GPT,
        {
            **GPT,
            "id": "mlmci-001",
            "precision": "bf16",
            "measured_memory_gib_per_gpu": "40",
            "recompute": "none",
            "vocab": "51200",
        },
        {**GPT, "id": "kor22-003", "notes": "spec=C; guessed"},
        {**GPT, "id": "kor22-004", "tp": "3"},
    ]
    body = "\n".join(",".join(line.get(c, "").replace(",", ";") for c in COLUMN_NAMES) for line in lines)
    path.write_text(",".join(COLUMN_NAMES) + "\n" + body + "\n")
    return path


def _twice(case: TrainingCase) -> Prediction:
    if case.id == "kor22-003":
        raise TorchperfError("no such plan")
    assert case.step_time_s is not None
    return Prediction(2 * case.step_time_s, 50 * 2.0**30, 60 * 2.0**30, 70 * 2.0**30)


def test_every_row_is_checked_or_skipped(table: Path) -> None:
    found = validate_training(table, predict=_twice).validation
    assert [(r.id, r.metric) for r in found.rows] == [
        ("kor22-001", "step_time"), ("mlmci-001", "step_time"), ("mlmci-001", "memory"),
    ]  # fmt: skip
    assert [r.error for r in found.rows] == pytest.approx([1.0, 1.0, 0.25])
    assert [(s.id, s.reason) for s in found.skipped] == [
        ("kor22-003", "no such plan"), ("kor22-004", "`--num-gpus 8` does not fit the plan"),
    ]  # fmt: skip
    assert {s.group for s in found.summary} >= {"step time, all", "memory, all", "step time, source kor22"}


def test_spec_and_key_choose_rows(table: Path) -> None:
    assert len(validate_training(table, spec="C", predict=_twice).validation.skipped) == 1
    assert {r.id for r in validate_training(table, key="mlmci", predict=_twice).validation.rows} == {"mlmci-001"}
    with pytest.raises(TorchperfError, match="no row of `other`"):
        validate_training(table, key="other", predict=_twice)


def test_two_rows_of_one_id_are_refused(table: Path) -> None:
    """Runs are told apart by their id: one would take the other's measured figures."""
    lines = table.read_text().splitlines()
    table.write_text("\n".join([*lines, "", lines[2]]) + "\n")
    with pytest.raises(TorchperfError, match="has 2 rows of one id") as caught:
        validate_training(table, predict=_twice)
    assert caught.value.facts == (("id", "mlmci-001"), ("lines", "3 and 7"))


def test_a_file_without_rows_is_refused(table: Path) -> None:
    table.write_text(table.read_text().splitlines()[0] + "\n")
    with pytest.raises(TorchperfError, match="has a header and no rows"):
        validate_training(table, predict=_twice)


def test_a_spec_that_no_row_has_is_refused(table: Path) -> None:
    with pytest.raises(TorchperfError, match="no row of `--spec B`") as caught:
        validate_training(table, spec="B", predict=_twice)
    assert caught.value.facts == (("specs", "A, C"),)


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "gemm.csv"
    path.write_text("source,gpu,dtype,m,n,k,measured_us\n")
    with pytest.raises(TorchperfError, match="no training runs"):
        validate_training(path)


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small model in full: capture, pipeline, table and JSON."""
    monkeypatch.setenv("TORCHPERF_CACHE", str(tmp_path / "cache"))
    small = {
        **GPT, "layers": "2", "hidden": "256", "heads": "8", "kv_heads": "8", "ffn_hidden": "1024", "seq_len": "256",
    }  # fmt: skip
    path, out = tmp_path / "training.csv", tmp_path / "out.json"
    body = ",".join(small.get(c, "") for c in COLUMN_NAMES)
    path.write_text(",".join(COLUMN_NAMES) + "\n" + body + "\n")
    result = CliRunner().invoke(main, ["validate", "training", "--data", str(path), "--json", str(out)])
    assert result.exit_code == 0, result.output
    assert "kor22-001" in result.output
    (row,) = json.loads(out.read_text())["rows"]
    assert (row["metric"], row["unit"], row["group"], row["spec"]) == ("step_time", "s", "kor22", "A")
    assert 0 < row["predicted"] < row["measured"]


needs_data = pytest.mark.skipif(not SHARED.is_file(), reason=f"no {SHARED}")


@needs_data
def test_nine_rows_in_ten_of_the_collected_runs_resolve() -> None:
    known = load_map()
    found = [case_of(cells, known) for cells in rows.read(SHARED)]
    built = [case for case in found if isinstance(case, TrainingCase)]
    assert len(built) >= 0.9 * len(found)
    assert all(s.reason for s in found if isinstance(s, Skipped))
    for case in built:
        assert case.plan.num_gpus == case.num_gpus, case.id
        assert case.step_time_s is None or 0 < case.step_time_s < 1000, case.id


# The table states the round number of the name: for these the dims give another, as their publishers count it too.
STATED_OTHERWISE = {
    "Nemotron-3-8B": "8.54 for 8.0",
    "Nemotron-3-22B": "21.27 for 22.0",
    "Nemotron-4-15B": "15.63 for 15.0",
    "InternLM-7B": "7.32 for 7.0",
}


@needs_data
def test_parameters_are_those_that_the_sources_state() -> None:
    known = load_map()
    seen: dict[str, TrainingCase] = {}
    for cells in rows.read(SHARED):
        case = case_of(cells, known)
        if isinstance(case, TrainingCase) and case.params:
            seen.setdefault(case.model.name, case)
    off = {}
    for name, case in seen.items():
        ours, stated = num_parameters(case.model), (case.params or math.nan) * 1e9
        if abs(ours / stated - 1) > 0.03:
            off[name] = f"{ours / 1e9:.2f} for {case.params}"
    assert off == STATED_OTHERWISE
