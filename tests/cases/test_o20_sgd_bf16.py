"""O20: Llama-2-7B in pure bf16 with plain SGD on one GPU, short sequences.

Measured: 13.51 GB after loading, 27.83 GB at the peak. Source: torchtune pull request 389.
"""

from __future__ import annotations

import pytest

import torchperf


def test_o20(captured) -> None:
    answer = torchperf.estimate(
        captured("llama-2-7b"), gpu="h100-sxm-80gb", precision="bf16", optimizer="sgd", seq_len=128
    )
    memory = answer.memory
    assert answer.parameters == 6_738_415_616
    assert memory.parameters == 2 * 6_738_415_616 == pytest.approx(13.48e9, rel=1e-3)
    assert memory.gradients == memory.parameters
    assert memory.optimizer == 0
    assert memory.bytes_per_parameter == (("weights bf16", 2.0), ("gradients bf16", 2.0))
    assert 26.95e9 < memory.peak < 26.95e9 + 1e9
    assert 26.9e9 <= memory.peak <= 29.0e9
