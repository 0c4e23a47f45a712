"""The GPT of Megatron-LM and of llm-foundry (MPT): what transformers' GPT-2 cannot say of them.

One module with the switches by which they differ: biases, dropout, learned or rotary positions, grouped keys and
values, a gated or plain MLP or experts, tied embeddings, fp32 logits. Names of dims are those of the field's papers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..plain import as_bf16
from ..subject import Arguments, Subject


@dataclass(frozen=True, slots=True)
class Gpt:
    """Dims and switches of one model; 0 where a dim follows from the others.

    ffn              width of the MLP, or of one expert; 0: 4 hidden
    positions        rows of a table of learned positions; 0: none of them
    rotary           share of a head's dims that turn with the position
    activation       gelu | squared_relu | swiglu
    norm             layernorm | rmsnorm
    embedding_norm   a norm behind the embedding
    fp32_logits      logits are cast to fp32 before the loss
    experts, top_k   experts of each MLP, and those that a token takes
    """

    layers: int
    hidden: int
    heads: int
    vocab: int
    kv_heads: int = 0
    head_dim: int = 0
    ffn: int = 0
    positions: int = 0
    rotary: float = 0.0
    activation: str = "gelu"
    norm: str = "layernorm"
    bias: bool = True
    tied: bool = True
    dropout: float = 0.0
    attention_dropout: float = 0.0
    qk_norm: bool = False
    embedding_norm: bool = False
    fp32_logits: bool = True
    experts: int = 0
    top_k: int = 0


class Attention(nn.Module):
    """Queries, keys and values from one product, laid out by group of keys as in Megatron-LM."""

    def __init__(self, dims: Gpt) -> None:
        super().__init__()
        self.heads, self.groups = dims.heads, dims.kv_heads or dims.heads
        self.head_dim = dims.head_dim or dims.hidden // dims.heads
        self.dropout, self.rotary = dims.attention_dropout, int(dims.rotary * self.head_dim)
        width = (self.heads + 2 * self.groups) * self.head_dim
        self.qkv = nn.Linear(dims.hidden, width, bias=dims.bias)
        self.proj = nn.Linear(self.heads * self.head_dim, dims.hidden, bias=dims.bias)
        self.q_norm = _norm(dims, self.head_dim) if dims.qk_norm else None
        self.k_norm = _norm(dims, self.head_dim) if dims.qk_norm else None

    def forward(self, x: Tensor, turn: tuple[Tensor, Tensor] | None) -> Tensor:
        """[B, S, H] -> [B, S, H]."""
        batch, length, _ = x.shape
        per_group = self.heads // self.groups
        qkv = self.qkv(x).view(batch, length, self.groups, per_group + 2, self.head_dim)
        q, k, v = qkv.split([per_group, 1, 1], dim=3)
        q = q.reshape(batch, length, self.heads, self.head_dim)
        k, v = k.squeeze(3), v.squeeze(3)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        if turn is not None:
            q, k = _turned(q, turn, self.rotary), _turned(k, turn, self.rotary)
        p = self.dropout if self.training else 0.0
        out = F.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=True, enable_gqa=per_group > 1)
        merged: Tensor = self.proj(out.transpose(1, 2).reshape(batch, length, self.heads * self.head_dim))
        return merged


class Mlp(nn.Module):
    """Two products with an activation between, gated or not."""

    def __init__(self, dims: Gpt) -> None:
        super().__init__()
        width = dims.ffn or 4 * dims.hidden
        self.activation = dims.activation
        self.up = nn.Linear(dims.hidden, width * (2 if dims.activation == "swiglu" else 1), bias=dims.bias)
        self.down = nn.Linear(width, dims.hidden, bias=dims.bias)

    def forward(self, x: Tensor) -> Tensor:
        """[.., H] -> [.., H]."""
        out: Tensor = self.down(_activated(self.up(x), self.activation))
        return out


class Experts(nn.Module):
    """Every token takes `top_k` experts; their products run grouped, each expert with its even share of rows."""

    def __init__(self, dims: Gpt) -> None:
        super().__init__()
        width = dims.ffn or 4 * dims.hidden
        self.top_k, self.activation = dims.top_k, dims.activation
        self.router = nn.Linear(dims.hidden, dims.experts, bias=False)
        gate = 2 if dims.activation == "swiglu" else 1
        self.up = nn.Parameter(torch.empty(dims.experts, dims.hidden, width * gate))
        self.down = nn.Parameter(torch.empty(dims.experts, width, dims.hidden))

    def forward(self, x: Tensor) -> Tensor:
        """[B, S, H] -> [B, S, H]."""
        rows = x.reshape(-1, x.shape[-1])
        scores = F.softmax(self.router(rows), dim=-1, dtype=torch.float32)
        weights, chosen = torch.topk(scores, self.top_k, dim=-1)
        order = torch.argsort(chosen.reshape(-1))
        token = torch.div(order, self.top_k, rounding_mode="floor")
        counts = torch.histc(chosen.reshape(-1).float(), bins=self.up.shape[0], min=0, max=self.up.shape[0] - 1)
        ends = torch.cumsum(counts, dim=0, dtype=torch.int32)
        taken = rows[token]
        made = torch._grouped_mm(_activated(torch._grouped_mm(taken, self.up, ends), self.activation), self.down, ends)
        made = made * weights.reshape(-1)[order].unsqueeze(-1).to(made.dtype)
        return torch.zeros_like(rows).index_add(0, token, made).view_as(x)


class Layer(nn.Module):
    """norm, attention, dropout, add; norm, MLP, dropout, add."""

    def __init__(self, dims: Gpt) -> None:
        super().__init__()
        self.dropout = dims.dropout
        self.norm1, self.norm2 = _norm(dims, dims.hidden), _norm(dims, dims.hidden)
        self.attention = Attention(dims)
        self.mlp: nn.Module = Experts(dims) if dims.experts else Mlp(dims)

    def forward(self, x: Tensor, turn: tuple[Tensor, Tensor] | None) -> Tensor:
        """[B, S, H] -> [B, S, H]."""
        x = x + F.dropout(self.attention(self.norm1(x), turn), self.dropout, self.training)
        return x + F.dropout(self.mlp(self.norm2(x)), self.dropout, self.training)


class GptModel(nn.Module):
    """Token ids -> the mean cross-entropy of the labels."""

    def __init__(self, dims: Gpt) -> None:
        super().__init__()
        self.dims = dims
        self.embedding = nn.Embedding(dims.vocab, dims.hidden)
        self.positions = nn.Embedding(dims.positions, dims.hidden) if dims.positions else None
        self.embedding_norm = _norm(dims, dims.hidden) if dims.embedding_norm else None
        self.layers = nn.ModuleList(Layer(dims) for _ in range(dims.layers))
        self.norm = _norm(dims, dims.hidden)
        self.head = nn.Linear(dims.hidden, dims.vocab, bias=False)
        if dims.tied:
            self.head.weight = self.embedding.weight

    def forward(self, input_ids: Tensor, labels: Tensor) -> Tensor:
        """[B, S], [B, S] -> scalar."""
        at = torch.arange(input_ids.shape[1], device=input_ids.device)
        x = self.embedding(input_ids)
        if self.positions is not None:
            x = x + self.positions(at)
        if self.embedding_norm is not None:
            x = self.embedding_norm(x)
        x = F.dropout(x, self.dims.dropout, self.training)
        turn = self._turn(at, x.dtype) if self.dims.rotary else None
        for layer in self.layers:
            x = layer(x, turn)
        logits = self.head(self.norm(x))
        logits = logits.float() if self.dims.fp32_logits else logits
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), labels.view(-1))

    def _turn(self, at: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Cosine and sine of every position, [S, D]."""
        width = int(self.dims.rotary * (self.dims.head_dim or self.dims.hidden // self.dims.heads))
        rate = 10000.0 ** (-torch.arange(0, width, 2, device=at.device, dtype=torch.float32) / width)
        angle = torch.outer(at.float(), rate)
        angle = torch.cat((angle, angle), dim=-1)
        return angle.cos().to(dtype), angle.sin().to(dtype)


def subject(name: str, dims: Gpt) -> Subject:
    """The model on meta in bf16; the table of positions bounds no sequence, since its rows are looked up."""
    with torch.device("meta"):
        module = as_bf16(GptModel(dims))

    def arguments(at: Mapping[str, int]) -> Arguments:
        ids = torch.empty(at["batch"], at["seq"], dtype=torch.long, device="meta")
        return (), {"input_ids": ids, "labels": torch.empty_like(ids)}

    return Subject(name, module, arguments, {"batch": 1, "seq": dims.positions or 2048})


def _norm(dims: Gpt, width: int) -> nn.Module:
    return nn.RMSNorm(width) if dims.norm == "rmsnorm" else nn.LayerNorm(width, bias=dims.bias)


def _activated(x: Tensor, name: str) -> Tensor:
    if name == "swiglu":
        gate, up = x.chunk(2, dim=-1)
        return F.silu(gate) * up
    if name == "squared_relu":
        return torch.square(F.relu(x))
    return F.gelu(x)


def _turned(x: Tensor, turn: tuple[Tensor, Tensor], width: int) -> Tensor:
    """The first `width` dims of every head turned by the position; half against half."""
    cos, sin = turn
    part, rest = (x, None) if width == x.shape[-1] else (x[..., :width], x[..., width:])
    first, second = part.chunk(2, dim=-1)
    out = part * cos + torch.cat((-second, first), dim=-1) * sin
    return out if rest is None else torch.cat((out, rest), dim=-1)
