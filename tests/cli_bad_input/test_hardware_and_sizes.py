"""GPUs that are not there or lack a dtype, files that are no TOML, and sizes that cannot be."""

from __future__ import annotations

import re

import pytest


@pytest.mark.parametrize(
    ("gpu", "nearest"),
    [
        ("h100-sxm-80g", "`h100-sxm-80gb`"),
        ("b301", "`b300-sxm`"),
        ("A100-SXM-80", "`a100-sxm-80gb`"),
        ("gb201", "`gb200`"),
    ],
)
def test_unknown_gpu(refused, gpu: str, nearest: str) -> None:
    said = refused("estimate", "gpt2", "--gpu", gpu)
    assert said.splitlines()[0] == f"error: unknown accelerator `{gpu}`"
    assert nearest in said.partition("hint: nearest: ")[2]


def test_ambiguous_gpu(refused) -> None:
    said = refused("estimate", "gpt2", "--gpu", "a100")
    assert said.splitlines()[0] == (
        "error: `a100` is more than one accelerator: "
        "`a100-pcie-40gb`, `a100-pcie-80gb`, `a100-sxm-40gb`, `a100-sxm-80gb`"
    )


def test_gpu_without_the_dtype(refused) -> None:
    said = refused("estimate", "gpt2", "--gpu", "v100-sxm-32gb", "--precision", "bf16-mixed")
    assert said.splitlines()[0] == "error: device `v100-sxm-32gb` has no `bf16` peak on its matrix engine"
    assert "choose a precision it has: `fp16`" in said


def test_unknown_precision(refused) -> None:
    said = refused("estimate", "gpt2", "--gpu", "t4", "--precision", "fp12")
    assert said.splitlines()[0] == "error: unknown precision `fp12`"
    assert "bf16-mixed, bf16, fp16-mixed, fp32, tf32" in said


@pytest.mark.parametrize("flag", ["--gpu", "--runtime"])
def test_malformed_toml(refused, file, flag: str) -> None:
    path = file("x.toml", "name = \n[[[")
    given = ("--gpu", f"./{path}") if flag == "--gpu" else ("--gpu", "t4", "--runtime", f"./{path}")
    said = refused("estimate", "gpt2", *given)
    assert said.splitlines()[0] == "error: `x.toml` is not TOML: invalid value (at line 1, column 8)"


def test_toml_of_something_else(refused, file) -> None:
    """All faults at once, each with its key."""
    said = refused("estimate", "gpt2", "--gpu", f"./{file('x.toml', 'name = 3')}")
    assert re.fullmatch(r"error: `x\.toml` has \d+ faults", said.splitlines()[0])
    assert "x.toml:memory: missing" in said
    assert "x.toml:peak: missing" in said


def test_missing_toml(refused, file) -> None:
    file("y.toml", "")
    said = refused("estimate", "gpt2", "--gpu", "./x.toml")
    assert said.splitlines()[0] == "error: there is no accelerator file `./x.toml`"


@pytest.mark.parametrize("flag", ["--seq-len", "--micro-batch", "--num-gpus"])
@pytest.mark.parametrize("value", ["0", "-4", "1.5", "many"])
def test_sizes_that_cannot_be(refused, flag: str, value: str) -> None:
    said = refused("estimate", "gpt2", "--gpu", "t4", flag, value)
    assert said.splitlines()[0].startswith(f"error: `{flag}` is `{value}`: it must be ")


def test_beyond_the_positions(refused) -> None:
    said = refused("estimate", "gpt2", "--gpu", "h100-sxm-80gb", "--seq-len", 1025)
    assert said.splitlines()[0] == "error: `--seq-len 1025` is more than `gpt2` has positions for"
    assert "give --seq-len 1024 or less" in said


def test_a_size_that_the_model_has_not(refused) -> None:
    said = refused("estimate", "vit-b-16", "--gpu", "h100-sxm-80gb", "--seq-len", 128)
    assert said.splitlines()[0] == "error: `vit-b-16` has no size `seq`"
    assert "leave out --seq-len" in said


@pytest.mark.parametrize("sizes", [{"seq_len": 0}, {"micro_batch": -1}])
def test_python_says_the_same(sizes: dict[str, int]) -> None:
    """`torchperf.capture` and `torchperf.estimate` refuse what the command line refuses."""
    import torchperf

    for call in (
        lambda: torchperf.estimate("gpt2", gpu="h100-sxm-80gb", **sizes),
        lambda: torchperf.inspect("gpt2", **sizes),
        lambda: torchperf.capture("gpt2", **sizes),
    ):
        with pytest.raises(torchperf.TorchperfError, match="at least 1"):
            call()
