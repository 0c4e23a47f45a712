"""`torchperf mfu`: the run can be told in three ways, and no way twice."""

from __future__ import annotations

import json

import pytest


def test_a_rate_and_tokens(run, pipeline) -> None:
    result = run(
        "mfu", "llama-3.1-8b", "--gpu", "h100", "--num-gpus", "64", "--seq-len", "8192",
        "--tokens-per-s-per-gpu", "6667", "--tokens", "1e12", "--price", "2.69", "--goodput", "0.9",
    )  # fmt: skip
    assert result.exit_code == 0
    assert result.stdout.startswith("tiny on 1 x t4: fp16-mixed, seq 128\n256 tokens/s per GPU\n")
    asked = {
        "parameters": None, "flops_per_token": None, "gpu": "h100", "num_gpus": 64, "seq_len": 8192,
        "precision": "bf16-mixed",
        "tokens_per_s_per_gpu": 6667.0, "tokens": 10**12, "global_batch": None, "steps": None, "wall_s": None,
        "price_per_gpu_hour": 2.69, "goodput": 0.9, "refresh": False,
    }  # fmt: skip
    assert pipeline.seen == [("mfu", ("llama-3.1-8b",), asked)]


def test_parameters_in_place_of_a_model(run, pipeline) -> None:
    run(
        "mfu", "--parameters", "70e9", "--gpu", "a100-sxm-80gb", "--num-gpus", "16", "--seq-len", "2048",
        "--global-batch", "16", "--steps", "500", "--wall-s", "48600",
    )  # fmt: skip
    ((name, args, asked),) = pipeline.seen
    assert (name, args) == ("mfu", (None,))
    assert asked["parameters"] == 70_000_000_000
    assert (asked["global_batch"], asked["steps"], asked["wall_s"]) == (16, 500, 48600.0)
    assert asked["goodput"] == 1.0


def test_json(run, pipeline, tmp_path) -> None:
    asked = ("mfu", "tiny", "--gpu", "t4", "--tokens-per-s-per-gpu", "256")
    assert json.loads(run(*asked, "--json", "-").stdout)["tokens_per_s_per_gpu"] == 256
    run(*asked, "--json", str(tmp_path / "mfu.json"))
    assert json.loads((tmp_path / "mfu.json").read_text())["days"] is None


RATE = ("--tokens-per-s-per-gpu", "9600")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((), "give MODEL, or `--parameters`, or `--flops-per-token`, and not more than one"),
        (
            ("tiny", "--parameters", "7e9", *RATE),
            "give MODEL, or `--parameters`, or `--flops-per-token`, and not more than one",
        ),
        (("tiny",), "give the run: `--tokens-per-s-per-gpu`, or `--tokens` and `--wall-s`"),
        (("tiny", "--tokens", "1e9"), "give the run: `--tokens-per-s-per-gpu`, or `--tokens` and `--wall-s`"),
        (("tiny", *RATE, "--wall-s", "5", "--tokens", "9"), "give `--tokens-per-s-per-gpu` or `--wall-s`"),
        (("tiny", "--wall-s", "5"), "`--wall-s` needs `--tokens`"),
        (("tiny", *RATE, "--steps", "5"), "`--global-batch` and `--steps` go together"),
        (
            ("tiny", *RATE, "--steps", "5", "--global-batch", "2", "--tokens", "9"),
            "give `--tokens`, or `--global-b",
        ),
        (
            ("--parameters", "7e9", "--wall-s", "5", "--steps", "5", "--global-batch", "2"),
            "`--global-batch` and `--steps` need `--seq-len` to give tokens",
        ),
        (("tiny", *RATE, "--price", "2"), "`--price` needs `--tokens`"),
        (("tiny", *RATE, "--goodput", "0.9"), "`--goodput` needs `--tokens`"),
        (
            ("tiny", "--tokens", "9", "--wall-s", "5", "--goodput", "0.9"),
            "`--goodput` does not go with `--wall-s`",
        ),
        (("tiny", "--tokens-per-s-per-gpu", "0"), "`--tokens-per-s-per-gpu` is `0`: it must be above 0"),
        (
            ("tiny", "--tokens-per-s-per-gpu", "fast"),
            "`--tokens-per-s-per-gpu` is `fast`: it must be a number",
        ),
        (("tiny", *RATE, "--tokens", "9", "--price", "-1"), "`--price` is `-1`: it must be above 0"),
        (("tiny", *RATE, "--tokens", "9", "--price", "nan"), "`--price` is `nan`: it must be above 0"),
        (("tiny", *RATE, "--tokens", "9", "--goodput", "90"), "`--goodput` is `90`: it must be at most 1"),
        (("tiny", *RATE, "--tokens", "0"), "`--tokens` is `0`: it must be at least 1"),
    ],
)
def test_too_little_or_the_same_twice(run, pipeline, args: tuple[str, ...], message: str) -> None:
    result = run("mfu", "--gpu", "t4", *args)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: {message}")
    assert result.stderr.endswith("hint: see `torchperf mfu --help`\n")
    assert pipeline.seen == []
