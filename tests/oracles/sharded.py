"""transformers' own models with hand-sharded layers, as Megatron-LM writes them (arXiv 1909.08053, figure 3).

A region begins with `f` (identity forward, all-reduce backward) and ends with `g` (all-reduce forward, identity
backward); its weights have the sizes of one rank. The vocabulary is split in the embedding and in the head.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed._functional_collectives as functional
from torch import nn
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
)
from transformers.pytorch_utils import Conv1D

from torchperf.frontend.hf import build

LAYERS, WIDTH, FFN, HEADS, KV_HEADS, VOCAB, EXPERTS = 3, 64, 96, 16, 8, 112, 6
KINDS = ("llama", "gpt2", "mixtral")
PLANS: dict[str, dict[str, str]] = {
    "llama": {
        "model.embed_tokens": "embedding_rowwise", "lm_head": "colwise",
        "model.layers.*.self_attn.q_proj": "colwise", "model.layers.*.self_attn.k_proj": "colwise",
        "model.layers.*.self_attn.v_proj": "colwise", "model.layers.*.self_attn.o_proj": "rowwise",
        "model.layers.*.mlp.gate_proj": "colwise", "model.layers.*.mlp.up_proj": "colwise",
        "model.layers.*.mlp.down_proj": "rowwise",
    },
    "gpt2": {
        "transformer.wte": "embedding_rowwise", "transformer.wpe": "replicate",
        "transformer.h.*.attn.c_attn": "packed_colwise", "transformer.h.*.attn.c_proj": "rowwise",
        "transformer.h.*.mlp.c_fc": "colwise", "transformer.h.*.mlp.c_proj": "rowwise",
    },
    "mixtral": {
        "model.embed_tokens": "embedding_rowwise", "lm_head": "colwise",
        "model.layers.*.self_attn.q_proj": "colwise", "model.layers.*.self_attn.k_proj": "colwise",
        "model.layers.*.self_attn.v_proj": "colwise", "model.layers.*.self_attn.o_proj": "rowwise",
        "model.layers.*.mlp.experts.gate_up_proj": "packed_colwise",
        "model.layers.*.mlp.experts.down_proj": "rowwise", "model.layers.*.mlp.gate": "replicate",
    },
}  # fmt: skip


class Region(torch.autograd.Function):
    """f where `forward_sums` is False, g where it is True."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, forward_sums: bool) -> torch.Tensor:
        ctx.sums = not forward_sums
        return all_reduced(x) if forward_sums else x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return (all_reduced(grad) if ctx.sums else grad), None


def all_reduced(x: torch.Tensor) -> torch.Tensor:
    return functional.all_reduce(x, "sum", torch.distributed.group.WORLD)


class Logits(nn.Module):
    """Token ids -> logits, without a loss."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.inside = model

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.inside(input_ids=ids).logits


def model(kind: str, ranks: int = 1) -> nn.Module:
    """The model with the sizes of one rank, on meta, in bf16; without its collectives."""
    common: dict[str, Any] = {
        "num_hidden_layers": LAYERS, "hidden_size": WIDTH, "intermediate_size": FFN // ranks,
        "num_attention_heads": HEADS // ranks, "num_key_value_heads": KV_HEADS // ranks, "head_dim": WIDTH // HEADS,
        "vocab_size": VOCAB // ranks, "max_position_embeddings": 64, "use_cache": False,
        "bos_token_id": None, "eos_token_id": None, "pad_token_id": None,
    }  # fmt: skip
    if kind == "llama":
        return build(LlamaForCausalLM, LlamaConfig(**common))
    if kind == "mixtral":
        return build(MixtralForCausalLM, MixtralConfig(**common, num_local_experts=EXPERTS, num_experts_per_tok=2))
    gpt2 = GPT2Config(
        vocab_size=VOCAB // ranks, n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS, n_inner=FFN // ranks, n_positions=64,
        bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    found = build(GPT2LMHeadModel, gpt2)
    with torch.device("meta"):
        for layer in found.transformer.h if ranks > 1 else ():
            attention = layer.attn
            attention.num_heads, attention.split_size = HEADS // ranks, WIDTH // ranks
            attention.c_attn = Conv1D(3 * WIDTH // ranks, WIDTH).bfloat16()
            attention.c_proj = Conv1D(WIDTH, WIDTH // ranks).bfloat16()
    return found


def sharded(kind: str, ranks: int) -> nn.Module:
    """One rank's model with f and g around attention and MLP, g after the embedding and f before the head."""
    found: Any = model(kind, ranks)
    layers = found.transformer.h if kind == "gpt2" else found.model.layers
    for layer in layers:
        attention = layer.attn if kind == "gpt2" else layer.self_attn
        experts = layer.mlp.experts if kind == "mixtral" else None  # the router before them runs whole on every rank
        _begins(attention)
        _ends(attention)
        _begins(experts or layer.mlp, also=2 if experts else None)
        _ends(experts or layer.mlp)
    _begins(found.lm_head)
    _ends(found.transformer.wte if kind == "gpt2" else found.model.embed_tokens)
    return found


def _begins(region: nn.Module, also: int | None = None) -> None:
    """f at the entrance: on the hidden states, and on argument `also` (the weights of a token's experts)."""

    def before(_: Any, args: Any, kwargs: Any) -> Any:
        if args:
            return tuple(Region.apply(a, False) if i in (0, also) else a for i, a in enumerate(args)), kwargs
        return args, {**kwargs, "hidden_states": Region.apply(kwargs["hidden_states"], False)}

    region.register_forward_pre_hook(before, with_kwargs=True)


def _ends(region: nn.Module) -> None:
    def after(_: Any, __: Any, out: Any) -> Any:
        return (Region.apply(out[0], True), *out[1:]) if isinstance(out, tuple) else Region.apply(out, True)

    region.register_forward_hook(after)
