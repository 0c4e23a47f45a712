"""Tiny models with experts, bound: those of transformers, and hand-written ones in forms that it does not have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import nn
from torch.nn import functional

import torchperf
from torchperf.frontend.capture import capture
from torchperf.frontend.hf import from_config
from torchperf.graph.graph import Graph

EXPERTS = {"mixtral": 4, "qwen3_moe": 4, "deepseek_v3": 8}
ROWS = 3 * 7 * 2  # batch, sequence, top_k: a size that no other dim has
GPT_OSS: dict[str, Any] = {
    "model_type": "gpt_oss", "architectures": ["GptOssForCausalLM"], "num_hidden_layers": 2, "hidden_size": 32,
    "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "vocab_size": 56,
    "num_local_experts": 4, "num_experts_per_tok": 2,
}  # fmt: skip


class EveryToken(nn.Module):
    """Every expert meets every token, scores of the others are 0: as Llama-4 runs, with a bias too."""

    def __init__(self, width: int = 32, inner: int = 48, experts: int = 4) -> None:
        super().__init__()
        self.router = nn.Linear(width, experts, bias=False)
        self.up, self.down = (
            nn.Parameter(torch.zeros(experts, width, inner)),
            nn.Parameter(torch.zeros(experts, inner, width)),
        )
        self.bias, self.experts = nn.Parameter(torch.zeros(experts, 1, inner)), experts

    def forward(self, x: Any) -> Any:
        tokens = x.reshape(-1, x.shape[-1])
        scores = self.router(tokens)
        top, which = scores.topk(2, dim=-1)
        scores = torch.full_like(scores, -1e9).scatter_(1, which, top).sigmoid()
        y = tokens.repeat(self.experts, 1).view(self.experts, -1, x.shape[-1]) * scores.t()[..., None]
        y = torch.relu(torch.bmm(y, self.up) + self.bias)
        return torch.bmm(y, self.down).sum(0).view(x.shape)


class ScoresInside(nn.Module):
    """Rows sorted by expert, each scaled by its score between the products."""

    def __init__(self, width: int = 32, inner: int = 48, experts: int = 4) -> None:
        super().__init__()
        self.router = nn.Linear(width, experts, bias=False)
        self.up, self.down = (
            nn.Parameter(torch.zeros(experts, width, inner)),
            nn.Parameter(torch.zeros(experts, inner, width)),
        )
        self.experts = experts

    def forward(self, x: Any) -> Any:
        tokens = x.reshape(-1, x.shape[-1])
        scores, which = self.router(tokens).softmax(-1).topk(2, dim=-1)
        expert, order = which.reshape(-1).sort()
        ends = torch.histc(expert.int(), bins=self.experts, min=0, max=self.experts - 1).cumsum(0, dtype=torch.int32)
        y = torch.relu(torch._grouped_mm(tokens[order // 2], self.up, offs=ends))
        y = torch._grouped_mm(y * scores.reshape(-1)[order][:, None], self.down, offs=ends)
        return torch.zeros_like(tokens).index_add_(0, order // 2, y).view(x.shape)


class Model(nn.Module):
    """Two layers of these experts between an embedding and a head."""

    def __init__(self, layer: type[nn.Module]) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(56, 32), nn.Linear(32, 56)
        self.layers = nn.ModuleList([layer() for _ in range(2)])

    def forward(self, ids: Any) -> Any:
        x = self.embedding(ids)
        for layer in self.layers:
            x = x + layer(x)
        return functional.cross_entropy(self.head(x).view(-1, 56), ids.view(-1))


def bound(kind: str, tiny: Callable[..., Any], batch: int = 3, seq: int = 7) -> Graph:
    """A model of that kind for `batch` sequences of `seq` tokens, forward and backward."""
    if kind in EXPERTS:
        return cast("Graph", tiny(kind, seq=seq, batch=batch).factors.graph)
    if kind == "gpt_oss":
        subject = from_config(GPT_OSS, kind)
        subject.fixed, subject.sizes = "one size is enough for this test", {"batch": batch, "seq": seq}
        graph = capture(subject, "train", subject.sizes)
        return graph.bind(**dict(graph.facts.sizes))
    with torch.device("meta"):
        module = Model({"EveryToken": EveryToken, "ScoresInside": ScoresInside}[kind])
    captured = torchperf.capture(module, lambda batch, seq: torch.zeros(batch, seq, dtype=torch.long))
    return captured.bind(batch=batch, seq=seq)
