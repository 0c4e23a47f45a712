"""Low-rank adapters on the attention of a frozen Llama, as `peft` puts them: Hu et al., arXiv 2106.09685."""

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM


class LoraLinear(nn.Module):
    def __init__(self, base: nn.Linear, rank: int = 16, alpha: int = 32, p: float = 0.05) -> None:
        super().__init__()
        self.base_layer = base
        self.lora_A = nn.Linear(base.in_features, rank, bias=False, dtype=base.weight.dtype)
        self.lora_B = nn.Linear(rank, base.out_features, bias=False, dtype=base.weight.dtype)
        self.dropout, self.scaling = nn.Dropout(p), alpha / rank

    def forward(self, x: Tensor) -> Tensor:
        return self.base_layer(x) + self.lora_B(self.lora_A(self.dropout(x))) * self.scaling


def build_model(**config: int) -> nn.Module:
    model = LlamaForCausalLM(LlamaConfig(**config))
    model.requires_grad_(False)
    for layer in model.model.layers:
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            setattr(layer.self_attn, name, LoraLinear(getattr(layer.self_attn, name)))
    return model


def get_inputs(batch: int = 1, seq: int = 2048) -> dict[str, Tensor]:
    ids = torch.randint(0, 1000, (batch, seq))
    return {"input_ids": ids, "labels": ids.clone()}
