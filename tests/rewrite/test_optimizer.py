"""What each optimizer keeps, and what one step of it moves."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import torchperf

GPU = "h100-sxm-80gb"
# bytes per parameter: (mixed precision, with fp32 master weights of 4 bytes; pure bf16)
KEPT = {
    "adamw": (4 + 4 + 4, 2 + 2),  # Loshchilov and Hutter, arXiv 1711.05101: two moments
    "adamw-bf16": (4 + 2 + 2, 2 + 2),  # Megatron Core, optimizer_config.py: exp_avg_dtype, exp_avg_sq_dtype
    "lion": (4 + 4, 2),  # Chen et al., arXiv 2302.06675: one momentum
    "sgd": (4, 0),  # without momentum
    "adam8bit": (4 + 2 * (1 + 4 / 256), 2 * (1 + 4 / 256)),  # Dettmers et al., arXiv 2110.02861: a scale per 256
}


def answer(optimizer: str, precision: str = "bf16-mixed", frozen: bool = False) -> torchperf.pipeline.Estimate:
    with torch.device("meta"):
        module = nn.Sequential(nn.Linear(64, 128, bias=False), nn.Linear(128, 64, bias=False))
        module[0].requires_grad_(not frozen)
    capture = torchperf.capture(module, torch.empty(8, 64))
    return torchperf.estimate(capture, gpu=GPU, precision=precision, optimizer=optimizer)


@pytest.mark.parametrize("optimizer", KEPT)
def test_state_bytes(optimizer: str) -> None:
    numel = 2 * 64 * 128
    mixed, pure = KEPT[optimizer]
    assert answer(optimizer).memory.optimizer == mixed * numel
    assert answer(optimizer, "bf16").memory.optimizer == pure * numel


def test_adafactor_keeps_rows_and_columns() -> None:
    """Shazeer and Stern, arXiv 1804.04235: an m x n matrix has m + n numbers of fp32."""
    assert answer("adafactor", "bf16").memory.optimizer == 2 * (64 + 128) * 4


def test_frozen_parameters_have_no_state() -> None:
    """Half the parameters frozen: half the gradients and states, all the weights."""
    all_of_it, half = answer("adamw"), answer("adamw", frozen=True)
    assert half.memory.parameters == all_of_it.memory.parameters
    assert 2 * half.memory.optimizer == all_of_it.memory.optimizer
    assert 2 * half.memory.gradients == all_of_it.memory.gradients
    assert 2 * half.trainable_parameters == half.parameters


@pytest.mark.parametrize(
    ("optimizer", "moved"),
    # read the gradient, master and states; write master, states and the 16-bit weights
    [("adamw", (2 + 12) + (12 + 2)), ("lion", (2 + 8) + (8 + 2)), ("sgd", (2 + 4) + (4 + 2))],
)
def test_bytes_moved(optimizer: str, moved: int) -> None:
    (row,) = (share for share in answer(optimizer).by_kind if share.name == "optimizer")
    assert row.nbytes == moved * 2 * 64 * 128
    assert row.calls == 1


def test_forward_alone_has_none() -> None:
    with torch.device("meta"):
        module = nn.Linear(64, 64)
    capture = torchperf.capture(module, torch.empty(8, 64), mode="forward")
    memory = torchperf.estimate(capture, gpu=GPU, mode="forward").memory
    assert (memory.optimizer, memory.gradients) == (0, 0)


def test_an_unknown_optimizer() -> None:
    with pytest.raises(torchperf.TorchperfError, match="unknown optimizer `adam9`"):
        answer("adam9")
