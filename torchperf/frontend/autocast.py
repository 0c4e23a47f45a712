"""torch.autocast while a model is captured: it has no meta device, and a capture is in bf16 already.

What stands inside runs as captured, in bf16, but for the losses, which autocast runs in fp32: their input is as large
as the logits. Norms and softmax, which autocast runs in fp32 too, stay in bf16. Source: torch's documentation,
"CUDA Ops that can autocast to float32".
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

_LOSSES = (
    "cross_entropy", "nll_loss", "mse_loss", "l1_loss", "smooth_l1_loss", "kl_div", "binary_cross_entropy_with_logits",
    "cosine_embedding_loss", "hinge_embedding_loss", "margin_ranking_loss", "poisson_nll_loss", "triplet_margin_loss",
)  # fmt: skip


class Autocast(contextlib.ContextDecorator):
    """Stands for `torch.autocast` of any device."""

    depth = 0  # of nested contexts that are on

    def __init__(self, *args: Any, enabled: bool = True, **_: Any) -> None:
        self.step = int(enabled)

    def __enter__(self) -> Autocast:
        Autocast.depth += self.step
        return self

    def __exit__(self, *_: Any) -> None:
        Autocast.depth -= self.step


def _in_fp32(loss: Any) -> Any:
    def in_fp32(input: Tensor, *args: Any, **kwargs: Any) -> Any:
        if Autocast.depth and input.is_meta:
            input = input.float()
            args = tuple(a.float() if isinstance(a, Tensor) and a.is_floating_point() else a for a in args)
        return loss(input, *args, **kwargs)

    return in_fp32


def install(stack: contextlib.ExitStack) -> None:
    """Replace autocast and the losses. Undone with the stack."""
    for owner in (torch, torch.amp, torch.cuda.amp, torch.cpu.amp):
        stack.callback(setattr, owner, "autocast", owner.autocast)
        owner.autocast = Autocast  # type: ignore[attr-defined]
    Autocast.depth = 0
    for name in _LOSSES:
        loss = getattr(F, name)
        stack.callback(setattr, F, name, loss)
        setattr(F, name, _in_fp32(loss))
