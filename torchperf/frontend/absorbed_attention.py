"""Latent attention (MLA) in decode, its up-projection absorbed: no head's keys or values are ever made.

    q_latent [B, H, S, rank] = q_nope [B, H, S, nope] . W_uk [H, nope, rank]
    o_latent                 = softmax([q_latent, q_rope] . [latent, k_rope]^T) latent     one key head of rank + rope
    out [B, H, S, v]         = o_latent [B, H, S, rank] . W_uv [H, v, rank]^T

with W_uk and W_uv the halves of `kv_b_proj`'s weight. Source: DeepSeek-V2, arXiv 2405.04434, section 2.1.2.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .attention_op import attention


def absorbed(module: Any, query: Tensor, latent: Tensor, scale: float | None, causal: bool) -> Tensor:
    """query [B, H, S, nope + rope] against latent [B, 1, T, rank + rope] -> [B, H, S, v]."""
    heads, rank = query.shape[1], module.kv_b_proj.weight.shape[1]
    rope = latent.shape[-1] - rank
    nope = query.shape[-1] - rope
    weight = module.kv_b_proj.weight.view(heads, -1, rank)
    to_latent, from_latent = weight[:, :nope], weight[:, nope:]
    q_latent = _by_head(query[..., :nope], to_latent)
    query = torch.cat((q_latent, query[..., nope:]), dim=-1)
    out = attention(query, latent, latent[..., :rank], is_causal=causal, scale=scale)
    return _by_head(out, from_latent.transpose(1, 2))


def _by_head(x: Tensor, weight: Tensor) -> Tensor:
    """x [B, H, S, k] . weight [H, k, n] -> [B, H, S, n], each head with its own matrix."""
    batch, heads, length, width = x.shape
    rows = x.permute(1, 0, 2, 3).reshape(heads, batch * length, width)
    return torch.bmm(rows, weight).view(heads, batch, length, -1).permute(1, 0, 2, 3)
