"""Multi-token prediction (arXiv 2412.19437, section 2.2) behind a transformers model of DeepSeek-V3's family.

Each depth norms the hidden states and the embeddings of the tokens one further on, joins them by a product of
[2 H, H], and runs one more decoder layer, a norm and the shared head.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .. import hf
from ..subject import Arguments, Subject

LOSS_WEIGHT = 0.1  # Megatron-LM's default --mtp-loss-scaling-factor; it changes no shape


class Depth(nn.Module):
    """One depth of prediction: what joins, and the layer that runs on it."""

    def __init__(self, layer: nn.Module, norm: type[nn.Module], hidden: int, eps: float) -> None:
        super().__init__()
        self.hidden_norm, self.token_norm, self.out_norm = (norm(hidden, eps) for _ in range(3))
        self.join = nn.Linear(2 * hidden, hidden, bias=False)
        self.layer = layer

    def forward(self, hidden: Tensor, tokens: Tensor, **others: Any) -> Tensor:
        """[B, S, H], [B, S, H] -> [B, S, H]."""
        x = self.join(torch.cat((self.token_norm(tokens), self.hidden_norm(hidden)), dim=-1))
        out = self.layer(x, **others)
        made: Tensor = self.out_norm(out[0] if isinstance(out, tuple) else out)
        return made


class WithPrediction(nn.Module):
    """A causal language model and its further depths; forward gives the sum of their losses."""

    def __init__(self, model: Any, depths: int) -> None:
        super().__init__()
        self.model = model
        config, last = model.config, model.model.layers[-1]
        norm = type(model.model.norm)
        self.depths = nn.ModuleList(
            Depth(type(last)(config, config.num_hidden_layers - 1), norm, config.hidden_size, config.rms_norm_eps)
            for _ in range(depths)
        )

    def forward(self, input_ids: Tensor, labels: Tensor) -> Tensor:
        """[B, S], [B, S] -> scalar."""
        inner = self.model.model
        hidden = inner(input_ids=input_ids, use_cache=False).last_hidden_state
        loss = self._loss(hidden, labels)
        at = torch.arange(input_ids.shape[1], device=input_ids.device)[None]
        turn = inner.rotary_emb(hidden, at)
        for depth in self.depths:
            tokens = inner.embed_tokens(torch.roll(input_ids, -1, dims=-1))
            hidden = depth(
                hidden, tokens, attention_mask=None, position_ids=at, position_embeddings=turn, use_cache=False
            )
            loss = loss + LOSS_WEIGHT * self._loss(hidden, labels)
        return loss

    def _loss(self, hidden: Tensor, labels: Tensor) -> Tensor:
        logits = self.model.lm_head(hidden).float()
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), labels.view(-1))


def subject(name: str, config: Mapping[str, Any], depths: int) -> Subject:
    """The model of a config with `depths` depths of prediction, on meta in bf16."""
    base = hf.from_config(config, name)
    with torch.device("meta"):
        module = WithPrediction(base.module, depths).to(torch.bfloat16)

    def arguments(at: Mapping[str, int]) -> Arguments:
        ids = torch.empty(at["batch"], at["seq"], dtype=torch.long, device="meta")
        return (), {"input_ids": ids, "labels": torch.empty_like(ids)}

    return Subject(
        name, module, arguments, dict(base.sizes), dict(base.limits), base.breaks, config=base.config,
        assumptions=list(base.assumptions), own_code=False,
    )  # fmt: skip
