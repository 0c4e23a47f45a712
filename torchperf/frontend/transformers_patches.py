"""transformers while it is captured: attention as one op, masks as rules instead of tensors.

A model that asks transformers' attention interface runs our attention op, and the window, chunk, soft cap and sinks
come from the interface's own arguments. A mask that is only causal, windowed or chunked is never built.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import masking_utils
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from . import cache_op
from .absorbed_attention import absorbed
from .attention_op import attention

NAME = "torchperf"
_local: dict[int, tuple[Tensor, dict[str, int | bool]]] = {}  # marker masks that stand for a window or a chunk


def _attention_forward(
    module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None,
    dropout: float = 0.0, scaling: float | None = None, is_causal: bool | None = None,
    position_bias: Tensor | None = None, sliding_window: int | None = None, softcap: float | None = None,
    s_aux: Tensor | None = None, **_: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
    run = cache_op.running()
    if run is not None and run.mode == "decode" and cache_op.is_latent(module):
        out = absorbed(module, query, run.latents[run.recorder.module], scaling, causal and query.shape[2] > 1)
        return out.transpose(1, 2).contiguous(), None
    rule: dict[str, Any] = {}
    bias = attention_mask
    if attention_mask is not None and id(attention_mask) in _local:
        rule = dict(_local[id(attention_mask)][1])
        causal, bias = bool(rule.pop("is_causal")), None
    if sliding_window is not None and "chunk" not in rule:
        rule["window"] = int(sliding_window)
    if bias is not None:  # a real mask: it says all there is to say
        causal, rule = False, {}
        bias = bias if bias.dim() == 4 else bias.reshape(-1, 1, *bias.shape[-2:])
    if position_bias is not None:
        bias = position_bias if bias is None else position_bias + torch.where(bias, 0.0, 1.0).to(position_bias.dtype)
    causal = causal and query.shape[2] > 1
    if value.shape[1] not in (query.shape[1], key.shape[1]):
        raise RuntimeError("attention with other value heads than key heads")
    out = attention(
        query, key, value, bias, s_aux, dropout_p=dropout, is_causal=causal, scale=scaling, softcap=softcap, **rule
    )
    return out.transpose(1, 2).contiguous(), None


def _mask(
    batch_size: int, q_length: int, kv_length: int, mask_function: Any = None, attention_mask: Any = None,
    local_size: int | None = None, allow_is_causal_skip: bool = True, allow_is_bidirectional_skip: bool = False,
    device: Any = None, use_vmap: bool = False, **others: Any,
) -> Any:  # fmt: skip
    """None for a causal or full mask, a marker for a window or a chunk, else transformers' own mask."""
    standard = attention_mask is None and not use_vmap and (allow_is_causal_skip or allow_is_bidirectional_skip)
    text = getattr(mask_function, "__qualname__", "") + " ".join(_inner_names(mask_function))
    if standard and local_size is None:
        return None
    if standard:
        kind = "chunk" if "chunk" in text else "window"
        marker = torch.empty((), dtype=torch.bool, device=device).expand(batch_size, 1, q_length, kv_length)
        causal = "bidirectional" not in text
        _local[id(marker)] = (marker, {kind: int(local_size or 0), "is_causal": causal})
        return marker
    return masking_utils.sdpa_mask(
        batch_size=batch_size, q_length=q_length, kv_length=kv_length, mask_function=mask_function,
        attention_mask=attention_mask, local_size=local_size, allow_is_causal_skip=False,
        allow_is_bidirectional_skip=False, device=device, use_vmap=use_vmap, **others,
    )  # fmt: skip


def _inner_names(function: Any) -> list[str]:
    names = []
    for cell in getattr(function, "__closure__", None) or ():
        content = cell.cell_contents
        for item in content if isinstance(content, tuple) else (content,):
            if callable(item):
                names += [getattr(item, "__qualname__", ""), *_inner_names(item)]
    return names


def install(stack: contextlib.ExitStack) -> None:
    """Register our attention, and answer what transformers would read out of a mask. Undone with the stack."""
    _local.clear()
    stack.callback(_local.clear)
    original = masking_utils.find_packed_sequence_indices
    stack.callback(setattr, masking_utils, "find_packed_sequence_indices", original)
    masking_utils.find_packed_sequence_indices = lambda *_a, **_k: None


def register() -> None:
    """Make `attn_implementation="torchperf"` known. Called before a model is built."""
    ALL_ATTENTION_FUNCTIONS.register(NAME, _attention_forward)
    masking_utils.ALL_MASK_ATTENTION_FUNCTIONS.register(NAME, _mask)
    transformers.logging.set_verbosity_error()
