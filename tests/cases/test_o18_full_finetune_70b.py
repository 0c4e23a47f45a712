"""O18: full fine-tuning of Llama-3-70B with AdamW in mixed precision, 16 bytes a parameter, on GPUs of 80 GB.

S = 4096, micro-batch 1. Source: xtuner issue 842 (out of memory on 16); Hugging Face blog issue 2245, where 300 GB and
519 GB were both published.
"""

from __future__ import annotations

import pytest

PARAMETERS = 70_553_706_496
STATES = ("parameters", "gradients", "optimizer")
USABLE = 79.2 * 2**30  # bytes, observed: an "80 GB" card has 85e9


def on(num_gpus: int, recompute: str = "none") -> tuple[object, ...]:
    return (
        "llama-3-70b", "--gpu", "h100-sxm-80gb", "--num-gpus", num_gpus, "--runtime", "fsdp-eager",
        "--seq-len", 4096, "--micro-batch", 1, "--recompute", recompute,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("num_gpus", "gb", "verdict"), [(16, 70.6, "does not fit"), (24, 47.0, "fits"), (32, 35.3, "fits")]
)
def test_o18_states(priced, num_gpus: int, gb: float, verdict: str) -> None:
    """The verdict is that under full recompute; without it activations alone are more than a card."""
    answer = priced(*on(num_gpus, "full"))
    states = sum(answer["memory_bytes"][name] for name in STATES)
    assert answer["parameters"] == PARAMETERS
    assert answer["bytes_per_parameter"] == {
        "weights fp32": 4, "gradients fp32": 4, "first moment fp32": 4, "second moment fp32": 4,
    }  # fmt: skip
    assert states * num_gpus / 1e9 == pytest.approx(1128.9, abs=0.1)
    assert states / 1e9 == pytest.approx(gb, abs=0.05)
    assert answer["verdict"] == verdict


def test_o18_sixteen_without_recompute(priced) -> None:
    """Does not fit; full recompute and a fused loss are named with what they leave, and not as a way out."""
    answer = priced(*on(16))
    assert answer["verdict"] == "does not fit"
    recomputed = priced(*on(16, "full"))["memory_bytes"]
    assert answer["memory_bytes"]["device"] > 2 * recomputed["device"] > 2 * USABLE
    advice = " ".join(s["text"] for s in answer["suggestions"])
    assert f"under `--recompute full` it does not fit either: {recomputed['device'] / 2**30:.2f} GiB" in advice
    assert "a fused loss saves these" in advice


def test_o18_states_alone(priced) -> None:
    """14 GPUs of 85e9 bytes hold the states (of 80e9 bytes 15): said with the bytes, and that nothing else fits."""
    answer = priced(*on(16))
    assert answer["memory_bytes"]["usable"] == pytest.approx(USABLE, rel=1e-3)
    assert -(-16 * PARAMETERS // 85e9) == 14
    (line,) = (text for text in answer["advice"] if text.startswith("states alone"))
    assert "would fit on 14 GPUs of 79.20 GiB usable" in line
    assert "with no room for activations" in line
    assert not any(text.startswith("states alone") for text in priced(*on(32, "full"))["advice"])
