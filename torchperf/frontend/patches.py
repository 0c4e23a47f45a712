"""What is replaced while a model is captured, so that the meta device records what a GPU would run.

Functions are patched where they live, not by a TorchFunctionMode: a mode is not active while a checkpointed block is
run again in backward, which then saves other tensors than the first time.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from . import autocast, grouped_mm
from .attention_op import attention

_builtin_attention = F.scaled_dot_product_attention


def _is_meta(tensor: Tensor) -> bool:
    return tensor.device.type == "meta"


def scaled_dot_product_attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Any = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> Tensor:  # fmt: skip
    """F.scaled_dot_product_attention as our attention op; other ranks than 4 are brought to 4."""
    if not _is_meta(query) or query.dim() < 2:
        return _builtin_attention(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    lead = query.shape[:-2]
    if query.dim() != 4:
        query, key, value = (_four_dims(t) for t in (query, key, value))
        attn_mask = _four_dims(attn_mask) if attn_mask is not None and attn_mask.dim() > 2 else attn_mask
    if is_causal and key.shape[2] > query.shape[2]:  # F's mask is aligned to the top left: later keys are unseen
        key, value = key[:, :, : query.shape[2]], value[:, :, : query.shape[2]]
    out = attention(query, key, value, attn_mask, dropout_p=dropout_p, is_causal=is_causal, scale=scale)
    return out.reshape(*lead, *out.shape[-2:]) if len(lead) != 2 else out


def _four_dims(tensor: Tensor) -> Tensor:
    if tensor.dim() == 2:
        return tensor[None, None]
    if tensor.dim() == 3:
        return tensor[:, None]
    return tensor.reshape(-1, *tensor.shape[-3:])


def dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """F.dropout as one op with a one-byte mask, as on a GPU; meta's own draws the mask in the input's dtype."""
    if not training or p == 0.0:
        return input
    out: Tensor = torch.ops.aten.native_dropout(input, p, True)[0]
    return out


@contextlib.contextmanager
def capture_patches() -> Iterator[None]:
    """All patches, for the length of a capture."""
    grouped_mm.install()
    with contextlib.ExitStack() as stack:
        _replace(stack, F, "scaled_dot_product_attention", scaled_dot_product_attention)
        _replace(stack, torch._C._nn, "scaled_dot_product_attention", scaled_dot_product_attention)
        _replace(stack, F, "dropout", dropout)
        autocast.install(stack)
        if torch.backends.mha.get_fastpath_enabled():  # one fused op without a meta kernel
            torch.backends.mha.set_fastpath_enabled(False)
            stack.callback(torch.backends.mha.set_fastpath_enabled, True)
        if "transformers" in sys.modules:
            from . import deepstack, recipes, transformers_patches

            transformers_patches.install(stack)
            recipes.install(stack)
            deepstack.install(stack)
        yield


def _replace(stack: contextlib.ExitStack, owner: Any, name: str, value: Any) -> None:
    stack.callback(setattr, owner, name, getattr(owner, name))
    setattr(owner, name, value)
