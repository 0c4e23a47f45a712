"""O19: full fine-tuning of Mixtral-8x7B: all 8 experts are in memory, 2 of them in the FLOPs.

Source: LlamaFactory issue 2518 (out of memory on 8 x 80 GB), xtuner pull request 275 (16 x 80 GB works).
"""

from __future__ import annotations

import pytest

PARAMETERS, ACTIVE = 46_702_792_704, 12_748_587_008
STATES = ("parameters", "gradients", "optimizer")


def on(num_gpus: int, *more: object) -> tuple[object, ...]:
    return (
        "mixtral-8x7b", "--gpu", "a100-sxm-80gb", "--num-gpus", num_gpus, "--runtime", "fsdp-eager",
        "--seq-len", 4096, "--recompute", "full", *more,
    )  # fmt: skip


@pytest.mark.parametrize(("num_gpus", "gb", "verdict"), [(8, 93.4, "does not fit"), (16, 46.7, "fits")])
def test_o19(priced, num_gpus: int, gb: float, verdict: str) -> None:
    answer = priced(*on(num_gpus))
    states = sum(answer["memory_bytes"][name] for name in STATES)
    assert answer["parameters"] == PARAMETERS
    assert states == 16 * PARAMETERS / num_gpus
    assert (states * num_gpus / 1e9, states / 1e9) == (pytest.approx(747, abs=0.5), pytest.approx(gb, abs=0.05))
    assert answer["verdict"] == verdict
    core = 12 * 32 * 4096 * 4096 * 4096  # attention's FLOPs of 4,096 tokens, forward and backward
    counted = answer["flops_noncausal"]["forward"] + answer["flops_noncausal"]["backward"]
    assert counted - core == pytest.approx(6 * ACTIVE * 4096, rel=1e-3)


def test_o19_ways_onto_eight(priced) -> None:
    """Offload, or a smaller optimizer state, brings it in."""
    plain, offloaded, small = (
        priced(*on(8, *more))
        for more in ((), ("--offload", "params+optimizer"), ("--optimizer", "adam8bit", "--precision", "bf16"))
    )
    assert plain["verdict"] == "does not fit"
    assert offloaded["verdict"] == "fits"
    assert offloaded["memory_bytes"]["host"] == 16 * PARAMETERS / 8
    assert small["verdict"] == "fits"
    assert small["memory_bytes"]["optimizer"] < plain["memory_bytes"]["optimizer"] / 3
