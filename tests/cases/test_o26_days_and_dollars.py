"""O26: Llama-3.1-8B, 1e12 tokens on 64 H100 at 6,667 tokens/s each and $2.69 a GPU-hour.

Source: the rate is that of O22; the price is RunPod's community price of 2026-08-19; asked for in llm-analysis pull
request 3, llm-inference-calculator issue 9, Megatron-LM issue 488.
"""

from __future__ import annotations

import pytest

RUN = ("llama-3.1-8b", "--gpu", "h100-sxm-80gb", "--num-gpus", 64, "--seq-len", 8192, "--tokens", "1e12")
COST = (*RUN, "--tokens-per-s-per-gpu", 6667, "--price", 2.69)


def test_o26(measured) -> None:
    answer = measured(*COST)
    assert answer["days"] == pytest.approx(27.1, rel=5e-3)
    assert answer["gpu_hours"] == pytest.approx(41_665, rel=5e-3)
    assert answer["dollars"] == pytest.approx(112_100, rel=5e-3)
    assert answer["goodput"] == 1.0


def test_o26_goodput(measured) -> None:
    whole, most = measured(*COST), measured(*COST, "--goodput", 0.9)
    for key in ("days", "gpu_hours", "dollars"):
        assert most[key] == pytest.approx(whole[key] / 0.9, rel=1e-12)


def test_o26_the_report(command) -> None:
    result = command("mfu", *COST)
    assert result.exit_code == 0
    text = " ".join(result.stdout.split())
    assert "wall time 27.1 days" in text
    assert "GPU-hours 41,665" in text
    assert "price $112,078 at $2.69 per GPU-hour" in text
    assert "at 100 % goodput, no time lost to restarts or checkpoints; `--goodput 0.9` counts such losses" in text


def test_o26_of_an_estimate(command, priced) -> None:
    """The same at the rate that is predicted."""
    plan = (*RUN, "--runtime", "fsdp-compile", "--global-batch", 128, "--recompute", "selective-ops")
    answer = priced(*plan, "--price", 2.69)
    run = answer["run"]
    assert run["steps"] == -(-(10**12) // answer["tokens_per_step"])
    assert run["days"] == pytest.approx(1e12 / (64 * 86400 * answer["tokens_per_s_per_gpu"]), rel=1e-4)
    assert run["gpu_hours"] == pytest.approx(24 * 64 * run["days"])
    assert run["dollars"] == pytest.approx(2.69 * run["gpu_hours"])
    less = priced(*plan, "--price", 2.69, "--goodput", 0.9)["run"]
    assert less["dollars"] == pytest.approx(run["dollars"] / 0.9)
    text = " ".join(command("estimate", *plan, "--price", 2.69).stdout.split())
    assert f"{run['days']:,.1f} days {run['gpu_hours']:,.0f} GPU-hours; ${run['dollars']:,.0f} at $2.69" in text
    assert "goodput 100.0 %; no time lost to restarts: `--goodput 0.9` counts such losses" in text


def test_o26_a_price_is_for_tokens(command) -> None:
    result = command("estimate", "llama-3.1-8b", "--gpu", "h100-sxm-80gb", "--price", 2.69)
    assert result.exit_code == 2
    assert result.stderr.startswith("error: `--price` needs `--tokens`: dollars are for a number of tokens")
