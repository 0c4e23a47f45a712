"""O10: frozen weights get no gradient: forward 2, input gradient 2, weight gradient for the adapters alone.

Source: NeMo Automodel pull request 786. Full training 1.0 and a third of it 0.34 are wrong; with attention left at
three times forward (its gradients are those of activations) the 70B has 0.679 at S = 4096.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers import AutoConfig, LlamaForCausalLM

import torchperf
from torchperf import configs

RANK = 16


class Lora(nn.Module):
    """W x + B A x, with W frozen. Projections of one input may share their A."""

    def __init__(self, base: nn.Linear, down: nn.Linear) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = down
        self.up = nn.Linear(down.out_features, base.out_features, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + self.up(self.down(x))


@pytest.mark.parametrize(("trainable", "expected"), [(False, 16_777_216), (True, 25_165_824)])
def test_o10_two_linears(flops, trainable: bool, expected: int) -> None:
    """Two of 256 x 256, batch 32, with a gradient for the input."""
    with torch.device("meta"):
        module = nn.Sequential(nn.Linear(256, 256), nn.Linear(256, 256)).requires_grad_(trainable)
        inputs = torch.empty(32, 256, requires_grad=True)
    assert flops(module, inputs).model == expected


def llama_3_70b(layers: int, rank: int | None) -> LlamaForCausalLM:
    """Llama-3-70B cut to `layers`; adapters on q k v, o, gate up and down, as on Megatron's four fused linears."""
    contents = {**configs.load("llama-3-70b"), "num_hidden_layers": layers}
    config = AutoConfig.for_model(contents.pop("model_type"), **contents)
    with torch.device("meta"):
        model = LlamaForCausalLM._from_config(config)
        if rank is not None:
            model.requires_grad_(False)
            for block in model.model.layers:
                adapt(block.self_attn, ("q_proj", "k_proj", "v_proj"), rank)
                adapt(block.self_attn, ("o_proj",), rank)
                adapt(block.mlp, ("gate_proj", "up_proj"), rank)
                adapt(block.mlp, ("down_proj",), rank)
    return model


def adapt(parent: nn.Module, names: tuple[str, ...], rank: int) -> None:
    down = nn.Linear(getattr(parent, names[0]).in_features, rank, bias=False)
    for name in names:
        setattr(parent, name, Lora(getattr(parent, name), down))


def of_80_layers(rank: int | None) -> tuple[int, int, int]:
    """(causal FLOPs of a step, parameters, trainable ones), F(80) = F(3) + 77 (F(3) - F(2)): all layers are alike."""
    two, three = (
        torchperf.estimate(
            torchperf.capture(llama_3_70b(layers, rank), seq_len=4096, micro_batch=1), gpu="h100-sxm-80gb", seq_len=4096
        )
        for layers in (2, 3)
    )

    def deep(shallow: int, deeper: int) -> int:
        return deeper + 77 * (deeper - shallow)

    return (
        deep(two.flops.model, three.flops.model),
        deep(two.parameters, three.parameters),
        deep(two.trainable_parameters, three.trainable_parameters),
    )


def test_o10_llama_3_70b() -> None:
    full, parameters, _ = of_80_layers(None)
    assert parameters == 70_553_706_496
    lora, with_adapters, trainable = of_80_layers(RANK)
    assert trainable == 175_636_480 == with_adapters - parameters
    assert lora / full == pytest.approx(0.679, rel=5e-3)
