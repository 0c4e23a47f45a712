"""Features of an image added to the hidden states of its tokens, layer by layer (Qwen3-VL and its kin).

transformers picks the rows by a mask over the tokens, whose count is data. There is one row of features an image
token, so that count is known: the rows are picked and written by indices, of the same size.
"""

from __future__ import annotations

import contextlib
import sys
from typing import Any

import torch
from torch import Tensor

# module of transformers -> class that has the method
_OWNERS = {
    "qwen3_vl.modeling_qwen3_vl": "Qwen3VLTextModel",
    "qwen3_vl_moe.modeling_qwen3_vl_moe": "Qwen3VLMoeTextModel",
}


def _deepstack_process(self: Any, hidden_states: Tensor, visual_pos_masks: Tensor, visual_embeds: Tensor) -> Tensor:
    """hidden_states [B, S, H] with visual_embeds [tokens, H] added at the tokens that the mask [B, S] marks."""
    tokens = visual_embeds.shape[0]
    sample, place = (torch.empty(tokens, dtype=torch.long, device=hidden_states.device) for _ in range(2))
    hidden_states = hidden_states.clone()
    added = hidden_states[sample, place] + visual_embeds.to(hidden_states.dtype)
    hidden_states[sample, place] = added
    return hidden_states


def install(stack: contextlib.ExitStack) -> None:
    """Put the method in the place of transformers' own, where it is loaded. Undone with the stack."""
    for module, name in _OWNERS.items():
        owner = getattr(sys.modules.get(f"transformers.models.{module}"), name, None)
        if owner is not None:
            stack.callback(setattr, owner, "_deepstack_process", owner._deepstack_process)
            owner._deepstack_process = _deepstack_process
