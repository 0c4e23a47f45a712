"""`torchperf estimate`: exit codes, what goes where, and arguments that cannot be."""

from __future__ import annotations

import json
import stat
from dataclasses import replace

import pytest

from torchperf.graph.estimate import Unpriced
from torchperf.graph.plan import Plan

RATE = ("--tokens-per-s-per-gpu", "9600")
ASKED = ("estimate", "tiny", "--gpu", "t4")


@pytest.mark.parametrize(("verdict", "code"), [("fits", 0), ("tight", 0), ("does not fit", 1)])
def test_exit_code_is_the_verdict(run, pipeline, estimate, verdict: str, code: int) -> None:
    pipeline.answers["estimate"] = replace(estimate, verdict=verdict)
    result = run(*ASKED)
    assert result.exit_code == code
    assert f"\n{verdict}: " in result.stdout
    assert result.stderr == ""


def test_every_option_reaches_the_pipeline(run, pipeline) -> None:
    run(
        *ASKED, "--num-gpus", "8", "--mode", "forward", "--seq-len", "4096", "--micro-batch", "2",
        "--precision", "fp32", "--optimizer", "lion", "--recompute", "full", "--attention", "unfused",
        "--runtime", "compile", "--strict", "--refresh", "--power-cap", "330", "--system", "dgx-h100",
        "--tp", "4", "--tp-plan", "hf", "--sequence-parallel", "--pp", "2", "--pp-split", "3,5",
        "--virtual-stages", "1",
        "--schedule", "1f1b", "--dp", "8", "--dp-shard", "4", "--zero", "2", "--no-reshard", "--reduce-dtype", "bf16",
        "--cp", "2", "--cp-kind", "ulysses", "--ep", "4", "--expert-tp", "1", "--moe-imbalance", "1.5",
        "--global-batch", "64", "--offload", "optimizer", "--tokens", "1e12", "--goodput", "0.9", "--price", "2.69",
        "--suggest",
    )  # fmt: skip
    plan = Plan(
        tp=4, tp_plan="hf", sequence_parallel=True, pp=2, pp_split=(3, 5), virtual_stages=1, schedule="1f1b", dp=8,
        dp_shard=4, zero_stage=2, reshard=False, reduce_dtype="bf16", cp=2, cp_kind="ulysses", ep=4, expert_tp=1,
        moe_imbalance=1.5, global_batch=64, recompute="full", offload="optimizer", micro_batch=2,
    )  # fmt: skip
    asked = {
        "gpu": "t4", "system": "dgx-h100", "num_gpus": 8, "mode": "forward", "seq_len": 4096, "precision": "fp32",
        "optimizer": "lion", "attention": "unfused", "runtime": "compile", "strict": True, "refresh": True,
        "power_cap": 330.0, "tokens": 10**12, "goodput": 0.9, "price_per_gpu_hour": 2.69, "suggest": True,
        "plan": plan,
    }  # fmt: skip
    assert pipeline.seen == [("estimate", ("tiny",), asked)]


def test_sizes_that_are_not_named_are_left_to_the_pipeline(run, pipeline) -> None:
    run(*ASKED)
    asked = {
        "gpu": "t4", "system": None, "num_gpus": None, "mode": "train", "precision": "bf16-mixed", "optimizer": "adamw",
        "attention": "auto", "runtime": "eager", "strict": False, "refresh": False, "power_cap": None, "seq_len": None,
        "tokens": None, "goodput": 1.0, "price_per_gpu_hour": None, "suggest": None, "plan": Plan(),
    }  # fmt: skip
    assert pipeline.seen == [("estimate", ("tiny",), asked)]


def test_json_to_stdout_replaces_the_table(run, pipeline) -> None:
    result = run(*ASKED, "--json", "-")
    assert json.loads(result.stdout)["step_time_s"] == 0.5
    assert result.exit_code == 0


def test_json_to_a_file_keeps_the_table(run, pipeline, tmp_path) -> None:
    file = tmp_path / "answer.json"
    result = run(*ASKED, "--json", str(file))
    assert result.stdout.startswith("tiny on 1 x t4")
    assert json.loads(file.read_text())["memory_bytes"]["usable"] == 8 * 2**30
    assert [path.name for path in tmp_path.iterdir()] == ["answer.json"]


def test_a_file_that_is_replaced_keeps_its_permissions(run, pipeline, tmp_path) -> None:
    file = tmp_path / "answer.json"
    file.write_text("old")
    file.chmod(0o640)
    run(*ASKED, "--json", str(file))
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    assert json.loads(file.read_text())["model"] == "tiny"


def test_a_failed_write_leaves_the_old_file_and_no_other(run, pipeline, estimate, tmp_path) -> None:
    file = tmp_path / "answer.json"
    file.write_text("old")
    pipeline.answers["estimate"] = replace(estimate, roofline_time_s=float("inf"))
    result = run(*ASKED, "--json", str(file))
    assert result.exit_code == 2
    assert file.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["answer.json"]


@pytest.mark.parametrize("flag", ["--json", "--csv"])
def test_a_folder_that_is_not_there(run, pipeline, tmp_path, flag: str) -> None:
    missing = str(tmp_path / "nowhere" / "answer")
    result = run(*ASKED, flag, missing)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: cannot write `{missing}`: no such file or directory\n\nhint: ")


def test_a_folder_in_place_of_a_file(run, pipeline, tmp_path) -> None:
    result = run(*ASKED, "--json", str(tmp_path))
    assert result.exit_code == 2
    assert result.stderr.startswith("error: cannot write `")
    assert list(tmp_path.iterdir()) == []


def test_csv_and_markdown(run, pipeline) -> None:
    assert run(*ASKED, "--csv", "-").stdout.startswith("table,name,phase,")
    assert "## memory\n\n| memory" in run(*ASKED, "--markdown").stdout


def test_markdown_beside_a_json_file(run, pipeline, tmp_path) -> None:
    file = tmp_path / "answer.json"
    assert "## memory" in run(*ASKED, "--markdown", "--json", str(file)).stdout
    assert file.exists()


@pytest.mark.parametrize(
    "flags", [("--json", "-", "--csv", "-"), ("--json", "-", "--markdown"), ("--csv", "-", "--markdown")]
)
def test_two_answers_do_not_fit_one_stdout(run, pipeline, flags: tuple[str, ...]) -> None:
    result = run(*ASKED, *flags)
    assert result.exit_code == 2
    assert result.stdout == ""
    told = "error: only one of `--json -`, `--csv -`, `--markdown` and `--explain` can go to stdout\n"
    assert result.stderr.startswith(told)
    assert pipeline.seen == []


def test_unpriced_ops_and_guesses_are_told_on_stderr(run, pipeline, estimate) -> None:
    ops = tuple(Unpriced(f"my.op{i}", 1, i, 0.1) for i in range(7))
    pipeline.answers["estimate"] = replace(estimate, unpriced=ops, guesses=("`mask.all()` taken as true",))
    result = run(*ASKED, "--json", "-")
    assert result.stderr == (
        "warning: 7 ops have no rule, only the bytes are priced: "
        "`my.op6`, `my.op5`, `my.op4`, `my.op3`, `my.op2`, and 2 more\n"
        "warning: 1 guess made: `mask.all()` taken as true\n"
    )
    assert json.loads(result.stdout)["guesses"] == ["`mask.all()` taken as true"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--seq-len", "0"), "`--seq-len` is `0`: it must be at least 1"),
        (("--seq-len", "-5"), "`--seq-len` is `-5`: it must be at least 1"),
        (("--micro-batch", "0"), "`--micro-batch` is `0`: it must be at least 1"),
        (("--num-gpus", "-1"), "`--num-gpus` is `-1`: it must be at least 1"),
        (("--seq-len", "1.5"), "`--seq-len` is `1.5`: it must be a whole number"),
        (("--seq-len", "4k"), "`--seq-len` is `4k`: it must be a whole number, such as `4096` or `1e12`"),
        (("--seq-len", "nan"), "`--seq-len` is `nan`: it must be a whole number"),
        (("--seq-len", "1e99"), "`--seq-len` is `1e99`: it must be a whole number"),
        (("--mode", "eval"), "invalid value for `--mode`: `eval` is not one of `train`, `forward`"),
        (("--optimizer", "adam"), "invalid value for `--optimizer`: `adam` is not one of"),
    ],
)
def test_sizes_and_words_that_cannot_be(run, pipeline, flags: tuple[str, ...], message: str) -> None:
    result = run(*ASKED, *flags)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: {message}")
    assert result.stderr.endswith("\n\nhint: see `torchperf estimate --help`\n")
    assert pipeline.seen == []


def test_what_is_missing_is_named(run, pipeline) -> None:
    assert run("estimate", "--gpu", "t4").stderr.startswith("error: missing argument `MODEL`")
    assert run("mfu", "--parameters", "7e9", *RATE).stderr.startswith("error: missing option `--gpu`")
    assert pipeline.seen == []
