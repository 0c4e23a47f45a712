"""What a module would read out of a tensor's data, answered by an average or left to one case; told in its note."""

from __future__ import annotations

import math
import sys
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from .overrides import Override


def one_language(self: Any, lang_ids: Tensor, hidden_states: Tensor) -> Tensor:
    """As `XmodOutput.lang_adapter`, every sample in the first language."""
    residual = hidden_states
    if self.adapter_layer_norm is not None:
        hidden_states = self.adapter_layer_norm(hidden_states)
    elif self.adapter_reuse_layer_norm:
        hidden_states = self.LayerNorm(hidden_states)
    if self.ln_before_adapter:
        residual = hidden_states
    adapter = next(iter(self.adapter_modules.values()))
    out: Tensor = self.dropout(adapter(hidden_states)) + residual
    return out


def even_patches(
    entropies: Tensor, sequence_length: int, patch_size: int | None = None, threshold: float | None = None
) -> Tensor:
    """As `BltPatcher.patch_lengths_from_entropies`, as many patches as the mean length gives: [batch, patches]."""
    patches = -(-sequence_length // (patch_size or 1))
    return entropies.new_empty((entropies.shape[0], patches)).long()


def whole_patches(patch_lengths: Tensor, max_patch_length: int | None) -> Tensor:
    """As `process_patch_lengths`, no patch longer than the largest."""
    return patch_lengths


class _Narrower(TorchFunctionMode):
    """A product of two element types runs in the narrower, as a kernel with an fp32 state does."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") in ("matmul", "__matmul__") and args[0].dtype != args[1].dtype:
            narrow = min(args[0].dtype, args[1].dtype, key=lambda dtype: dtype.itemsize)
            args = (args[0].to(narrow), args[1].to(narrow))
        return func(*args, **(kwargs or {}))


def mixed_products(original: Any, *args: Any, **kwargs: Any) -> Any:
    """`original` with products of fp32 and bf16 in bf16, which its own code refuses."""
    with _Narrower():
        return original(*args, **kwargs)


def without_per_layer_inputs(original: Any, self: Any, hidden: Any, per_layer: Any, *args: Any, **kwargs: Any) -> Any:
    """As `Gemma4TextModel._maybe_slice_kv_shared_inputs`, where there are no inputs of each layer to cut."""
    if per_layer is not None:
        return original(self, hidden, per_layer, *args, **kwargs)
    made = original(self, hidden, hidden[:, :, None], *args, **kwargs)
    return (made[0], None, *made[2:])


def qsa_indexer(
    self: Any, hidden_states: Tensor, position_embeddings: Any, attention_mask: Any, cache: Any
) -> Tensor:  # fmt: skip
    """As `Qwen4ExpTextQSAIndexer.forward`, all queries at once: which keys each may see, bool [B, 1, S, T]."""
    file = sys.modules[type(self).__module__]
    batch, length, _ = hidden_states.shape
    cos, sin = position_embeddings
    heads, width, ratio = self.index_n_heads, self.index_head_dim, self.compress_ratio
    queries, keys = self.index_qk_proj(hidden_states).split((heads * width, self.index_kv_heads * width), dim=-1)
    queries = self.q_layernorm(queries.reshape(batch, length, heads, width))
    queries = file.apply_rotary_pos_emb(queries, cos=cos[:, -length:], sin=sin[:, -length:], unsqueeze_dim=2)
    if cache is not None:
        keys = cache.update_indexer(keys, self.layer_idx)
    tokens = keys.shape[1]
    blocks = tokens // ratio
    whole = torch.ones((batch, length, tokens - blocks * ratio), dtype=torch.bool, device=keys.device)
    if not blocks:
        return whole[:, None]
    pooled = keys[:, : blocks * ratio].view(batch, blocks, ratio, width).float().mean(dim=2).to(keys.dtype)
    starts = slice(None, blocks * ratio, ratio)
    pooled = self.k_layernorm(pooled)[:, :, None]
    pooled = file.apply_rotary_pos_emb(pooled, cos=cos[:, starts], sin=sin[:, starts], unsqueeze_dim=2)
    pooled = pooled.reshape(batch, blocks, width)
    rows = queries.reshape(batch, length * heads, width).float()
    scores = torch.bmm(rows, pooled.float().transpose(1, 2)).view(batch, length, heads, blocks)
    scores = torch.relu(scores).sum(dim=2) / math.sqrt(width)
    chosen = scores.topk(min(self.block_topk, blocks), dim=-1).indices
    seen = torch.zeros((batch, length, blocks), dtype=torch.bool, device=keys.device).scatter(-1, chosen, True)
    return torch.cat((seen.repeat_interleave(ratio, dim=-1), whole), dim=-1)[:, None]


_EVEN = "patches have the mean length `patch_size` of the config: where they end is told by the data"

OVERRIDES = (
    Override("xlstm", "", "mlstm_chunkwise_recurrent_fw_C", mixed_products, "xLSTMBackend", around=True),
    Override("xlstm", "", "mlstm_chunkwise_parallel_fw_H", mixed_products, "xLSTMBackend", around=True),
    Override(
        "gemma4", "Gemma4TextModel", "_maybe_slice_kv_shared_inputs", without_per_layer_inputs, "Gemma4TextModel",
        around=True,
    ),
    Override(
        "qwen4_exp", "Qwen4ExpTextQSAIndexer", "forward", qsa_indexer, "Qwen4ExpTextQSAIndexer",
        "the sparse indexer scores every block of keys for all queries at once; its own code loops over the queries",
    ),
    Override(
        "xmod", "XmodOutput", "lang_adapter", one_language, "XmodOutput",
        "every sample is in one language: the adapters of the others do not run",
    ),
    Override("blt", "BltPatcher", "patch_lengths_from_entropies", staticmethod(even_patches), "BltPatcher", _EVEN),
    Override("blt", "", "process_patch_lengths", whole_patches, "BltModel", _EVEN),
)  # fmt: skip
