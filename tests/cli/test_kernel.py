"""`torchperf kernel`: a price that can be checked by hand."""

from __future__ import annotations

import json

import pytest

COMMANDS = [
    ("matmul", "--gpu", "h100-sxm-80gb", "--m", "4096", "--n", "14336", "--k", "4096", "--dtype", "bf16"),
    ("matmul", "--gpu", "h100-sxm-80gb", "--m", "64", "--n", "14336", "--k", "4096", "--dtype", "fp8", "--quantise"),
    ("matmul", "--gpu", "a100-sxm-80gb", "--m", "64", "--n", "4096", "--k", "4096", "--dtype", "int4_wo"),
    ("matmul", "--gpu", "h200", "--m", "8192", "--n", "1536", "--k", "2048", "--groups", "128", "--imbalance", "1.3"),
    ("attention", "--gpu", "a100-sxm-80gb", "--heads", "32", "--kv-heads", "8", "--q", "4096"),
    ("attention", "--gpu", "h200", "--heads", "64", "--kv-heads", "8", "--q", "1", "--kv", "8192", "--kernel", "vllm"),
    ("attention", "--gpu", "h100-sxm-80gb", "--heads", "16", "--q", "2048", "--backward"),
    ("collective", "--system", "dgx-h100", "--bytes", "64e6", "--ranks", "8"),
    ("collective", "--system", "dgx-h100", "--kind", "all_gather", "--bytes", "1e9", "--ranks", "64"),
]


@pytest.mark.parametrize("args", COMMANDS, ids=[" ".join(c[:3]) + str(i) for i, c in enumerate(COMMANDS)])
def test_a_price_with_its_terms(run, args: tuple[str, ...]) -> None:
    result = run("kernel", *args, "--json", "-")
    assert result.exit_code == 0, result.stderr
    (one,) = json.loads(result.stdout)["prices"]
    assert one["time_s"] == pytest.approx(sum(t["time_s"] for t in one["terms"]), rel=1e-6) or len(one["terms"]) == 3
    assert one["bound"] in ("compute", "l2", "hbm", "launch", "network")
    assert all(term["sources"] for term in one["terms"] if term["time_s"] and term["name"] != "join")
    assert "bound by" in run("kernel", *args).stdout


def test_a_sweep_is_a_curve_that_never_falls(run) -> None:
    result = run("kernel", *COMMANDS[0], "--sweep", "--json", "-")
    prices = json.loads(result.stdout)["prices"]
    assert [p["size"] for p in prices] == [2**i for i in range(13)]
    times = [p["time_s"] for p in prices]
    assert times == sorted(times)


def test_a_type_that_the_device_lacks(run) -> None:
    result = run("kernel", "matmul", "--gpu", "v100-sxm-32gb", "--m", "8", "--n", "8", "--k", "8", "--dtype", "fp8")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: device `v100-sxm-32gb` has no `fp8` peak")
