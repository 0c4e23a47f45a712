"""Each way to mix positions outside attention is found, and named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from torchperf.graph.errors import TorchperfError
from torchperf.partition.context_check import check


class Layer(nn.Module):
    def __init__(self, mix: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.mix, self.conv, self.up = mix, nn.Conv1d(16, 16, 3, padding=1), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        mixed = self.conv(x.transpose(1, 2)).transpose(1, 2) if self.mix is conv else self.mix(x)
        return x + self.up(mixed)


class Model(nn.Module):
    """Ids [B, S] -> loss; its layers mix positions by `mix` alone, its loss drops the last position's logits."""

    def __init__(self, mix: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(40, 16), nn.Linear(16, 40)
        self.layers = nn.ModuleList([Layer(mix) for _ in range(3)])

    def forward(self, ids: Tensor) -> Any:
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        logits = self.head(x)[:, :-1]
        return functional.cross_entropy(logits.reshape(-1, 40), ids[:, 1:].reshape(-1))


def conv(x: Tensor) -> Tensor:
    return x


def softmax(x: Tensor) -> Tensor:
    scores = x @ x.transpose(1, 2)
    return scores.softmax(-1) @ x


def own_position(x: Tensor) -> Tensor:
    return functional.gelu(functional.layer_norm(x, (16,)))


def by_position(x: Tensor) -> Tensor:
    """Positions made of constants: a rank is given its own."""
    return x * torch.ones(x.shape[:2], device=x.device).cumsum(1)[..., None]


def shifted(x: Tensor) -> Tensor:
    return functional.pad(x, (0, 0, 1, 0))[:, :-1]


def first(x: Tensor) -> Tensor:
    return x[:, :1].expand_as(x)


def by_index(x: Tensor) -> Tensor:
    return x[:, torch.zeros(x.shape[1], dtype=torch.long, device=x.device)]


MIXERS: list[tuple[Callable[[Tensor], Tensor], str, str]] = [
    (conv, "aten.convolution.default", "every position"),
    (softmax, "aten._softmax.default", "a sum or a maximum over the sequence"),
    (lambda x: x.cumsum(1), "aten.cumsum.default", "every position"),
    (lambda x: x.flip(1), "aten.flip.default", "every position"),
    (lambda x: x.roll(1, 1), "aten.roll.default", "every position"),
    (lambda x: x.sort(1).values, "aten.sort.default", "every position"),
    (lambda x: x.mean(1, keepdim=True).expand_as(x), "aten.mean.dim", "sums over the sequence"),
    (lambda x: x.amax(1, keepdim=True).expand_as(x), "aten.amax.default", "every position"),
    (shifted, "aten.constant_pad_nd.default", "joins or cuts"),
    (first, "aten.slice.Tensor", "joins or cuts"),
    (by_index, "aten.index.Tensor", "reads by position"),
]


def _graph(mix: Callable[[Tensor], Tensor]) -> Any:
    import torchperf

    with torch.device("meta"):
        module = Model(mix)
    return torchperf.capture(module, lambda batch, seq: torch.zeros(batch, seq, dtype=torch.long)).bind(batch=2, seq=32)


@pytest.mark.parametrize(("mix", "op", "reason"), MIXERS, ids=[op.split(".")[1] for _, op, _ in MIXERS])
def test_what_mixes_positions_is_an_error(mix: Callable[[Tensor], Tensor], op: str, reason: str) -> None:
    with pytest.raises(TorchperfError) as caught:
        check(_graph(mix))
    assert op in caught.value.message
    assert reason in caught.value.message
    assert "layers.*" in dict(caught.value.facts)["op"]


@pytest.mark.parametrize("mix", [own_position, by_position])
def test_what_looks_at_one_position_is_none_and_a_shifted_loss_is_none(mix: Callable[[Tensor], Tensor]) -> None:
    check(_graph(mix))
