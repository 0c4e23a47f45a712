"""O09: tokens of the whole run go over all GPUs. 70B, 16 x A100-80GB, S = 2048, batch 16, 500 steps, 13.5 hours.

Source: Hugging Face blog issue 1649, published as 45.4 % (over one GPU) and withdrawn.
"""

from __future__ import annotations

import pytest


def test_o09(measured) -> None:
    answer = measured(
        "--parameters", "70e9", "--global-batch", 16, "--steps", 500, "--seq-len", 2048, "--wall-s", 48600,
        "--num-gpus", 16, "--gpu", "a100-sxm-80gb",
    )  # fmt: skip
    assert answer["tokens"] == 16_384_000
    assert answer["wall_time_s"] == 13.5 * 3600
    (mfu,) = answer["mfu"]
    assert mfu["value"] == pytest.approx(0.0284, abs=5e-5)
    assert mfu["value"] == pytest.approx(6 * 7e10 * 1.6384e7 / (48_600 * 16 * 312e12), rel=1e-12)


def test_o09_the_tokens_themselves(measured) -> None:
    """The same run told by its tokens."""
    answer = measured(
        "--parameters", "70e9", "--tokens", 16_384_000, "--wall-s", 48600, "--num-gpus", 16,
        "--gpu", "a100-sxm-80gb",
    )  # fmt: skip
    assert answer["mfu"][0]["value"] == pytest.approx(0.0284, abs=5e-5)
