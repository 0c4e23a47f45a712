"""Activations, weights and optimizer states of four GPTs on A100s, per GPU, under tensor and sequence parallelism.

Korthikanti et al. 2022, arXiv 2205.05198. Bytes that one layer keeps, over s b h, with t-way tensor parallelism
(equations 1 to 4, tables 2 and 3):

    no recompute     10 + 24/t + 5 a s / (h t)         with sequence parallelism  (34 + 5 a s / h) / t
    selective        10 + 24/t                                                    34 / t
    full             2                                                            2 / t

The first stage of a pipeline holds p micro-batches of L/p layers, or with m interleaved stages 1 + (p-1)/(p m) of that
(section 4.2.3). The figures of GiB and per cent are those of figures 1 and 7, as calculon-ai/calculon lists them in
calculon/llm/validation.py.

The paper leaves out the statistics of the two LayerNorms, mean and 1/deviation in fp32: here they are counted apart.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import torchperf
from torchperf.annotate import works as annotated
from torchperf.graph.graph import Graph
from torchperf.partition.tensor_parallel import tensor_parallel
from torchperf.rewrite import precision, recompute
from torchperf.schedule import memory

S, T, VOCAB = 2048, 8, 51200
GIB = 2**30


@dataclass(frozen=True)
class Gpt:
    """layers, hidden size, heads, micro-batch, pipeline stages, interleaved stages a device; then the paper's figures.

    whole, selective   GiB of activations without recompute, and with selective recompute and sequence parallelism
    states             GiB of weights, gradients and optimizer states, at 18 bytes a parameter
    percent            of `whole`: sequence parallel, selective, both, full
    """

    layers: int
    h: int
    a: int
    b: int
    p: int
    m: int
    whole: float
    selective: float
    states: float
    percent: tuple[float, float, float, float]

    @property
    def in_flight(self) -> float:
        """Layers whose activations the first stage holds at once."""
        return self.layers * (1 + (self.p - 1) / (self.p * self.m) if self.m > 1 else 1)


GPTS = {
    "22B": Gpt(48, 6144, 64, 4, 1, 1, 59.25, 9.56, 45.56, (66.84, 49.42, 16.18, 7.64)),
    "175B": Gpt(96, 12288, 96, 1, 8, 3, 66.84, 12.35, 45.56, (62.04, 56.53, 18.49, 8.71)),
    "530B": Gpt(105, 20480, 128, 1, 35, 3, 114.02, 23.08, 31.64, (58.31, 62.04, 20.27, 9.42)),
    "1T": Gpt(128, 25600, 160, 1, 64, 1, 131.25, 26.56, 32.96, (58.31, 62.04, 20.27, 9.42)),
}
HOWS = [(how, sequence) for how in ("none", "selective", "full") for sequence in (False, True)]


class Attention(nn.Module):
    """Attention as Megatron-LM runs it without flash: one weight for Q, K and V, dropout on the probabilities."""

    def __init__(self, h: int, a: int) -> None:
        super().__init__()
        self.query_key_value, self.dense = nn.Linear(h, 3 * h), nn.Linear(h, h)
        self.a = a

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> Any:
        b, s, h = x.shape
        q, k, v = (y.view(b, s, self.a, h // self.a).transpose(1, 2) for y in self.query_key_value(x).split(h, dim=2))
        scores = q @ k.transpose(2, 3) / (h // self.a) ** 0.5
        probs = functional.dropout(functional.softmax(scores + mask, dim=-1), 0.1)
        return self.dense((probs @ v).transpose(1, 2).reshape(b, s, h))


class Layer(nn.Module):
    def __init__(self, h: int, a: int) -> None:
        super().__init__()
        self.input_layernorm, self.attention = nn.LayerNorm(h), Attention(h, a)
        self.post_attention_layernorm = nn.LayerNorm(h)
        self.dense_h_to_4h, self.dense_4h_to_h = nn.Linear(h, 4 * h), nn.Linear(4 * h, h)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = x + functional.dropout(self.attention(self.input_layernorm(x), mask), 0.1)
        y = functional.gelu(self.dense_h_to_4h(self.post_attention_layernorm(x)))
        return x + functional.dropout(self.dense_4h_to_h(y), 0.1)


class Model(nn.Module):
    """Three layers stand for all: the one in the middle is like every other."""

    def __init__(self, h: int, a: int) -> None:
        super().__init__()
        self.word, self.position = nn.Embedding(VOCAB, h), nn.Embedding(S, h)
        self.layers = nn.ModuleList([Layer(h, a) for _ in range(3)])
        self.norm = nn.LayerNorm(h)
        self.register_buffer("mask", torch.zeros(S, S))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = functional.dropout(self.word(ids) + self.position(torch.arange(S, device=ids.device)), 0.1)
        for layer in self.layers:
            x = layer(x, self.mask)
        logits = functional.linear(self.norm(x), self.word.weight)
        return functional.cross_entropy(logits.view(-1, VOCAB), ids.view(-1))


@pytest.fixture(scope="module")
def program(cache_folder: Any) -> Callable[[str, str, bool], Graph]:
    """`program("22B", "selective", True)`: what one of eight ranks runs."""

    @cache
    def recorded(name: str) -> Graph:
        gpt = GPTS[name]
        with torch.device("meta"):
            module, ids = Model(gpt.h, gpt.a), torch.zeros(gpt.b, S, dtype=torch.long)
        return torchperf.capture(module, ids).bind()

    @cache
    def make(name: str, how: str, sequence: bool) -> Graph:
        graph = precision.apply(recorded(name), precision.precision("fp16-mixed"))
        return recompute.apply(tensor_parallel(graph, T, sequence=sequence).program, how)

    return make


def kept(graph: Graph) -> tuple[int, int]:
    """Bytes that the middle layer keeps: (all but statistics, statistics)."""
    bulk = statistics = 0
    for life in memory.saved(graph, annotated(graph)).values():
        segment = graph.segments[life.birth[0]]
        if segment.module == "layers.1":
            op = graph.blocks[segment.block].ops[life.birth[1]]
            small = "layer_norm" in op.name and life.nbytes < op.outputs[0].nbytes
            statistics += small * life.nbytes
            bulk += (not small) * life.nbytes
    return bulk, statistics


def formula(gpt: Gpt, how: str, sequence: bool) -> float:
    """The paper's bytes of one layer on one rank."""
    scores = 5 * gpt.a * S / gpt.h
    per_token = {
        ("none", False): 10 + 24 / T + scores / T, ("none", True): (34 + scores) / T,
        ("selective", False): 10 + 24 / T, ("selective", True): 34 / T, ("full", False): 2, ("full", True): 2 / T,
    }[how, sequence]  # fmt: skip
    return per_token * S * gpt.b * gpt.h


@pytest.mark.parametrize(("how", "sequence"), HOWS)
@pytest.mark.parametrize("name", GPTS)
def test_layer(program: Callable[[str, str, bool], Graph], name: str, how: str, sequence: bool) -> None:
    """To the byte; the statistics are two LayerNorms' two fp32 numbers a token."""
    gpt = GPTS[name]
    bulk, statistics = kept(program(name, how, sequence))
    assert bulk == round(formula(gpt, how, sequence))
    assert statistics == (0 if how == "full" else 2 * 2 * 4 * S * gpt.b // (T if sequence else 1))


@pytest.mark.parametrize("name", GPTS)
def test_whole_gpu(program: Callable[[str, str, bool], Graph], name: str) -> None:
    """GiB of the first pipeline stage: as printed without statistics, and within 0.3 % with them."""
    gpt = GPTS[name]
    for how, sequence, printed in (("none", False, gpt.whole), ("selective", True, gpt.selective)):
        bulk, statistics = kept(program(name, how, sequence))
        assert bulk * gpt.in_flight / GIB == pytest.approx(printed, abs=0.0051)
        assert (bulk + statistics) * gpt.in_flight / GIB == pytest.approx(printed, rel=0.003)


@pytest.mark.parametrize("name", GPTS)
def test_percent_of_no_recompute(program: Callable[[str, str, bool], Graph], name: str) -> None:
    """Figure 7: with sequence parallelism, selective recompute, both, and full recompute; read to about 0.1 %."""
    whole = sum(kept(program(name, "none", False)))
    hows = (("none", True), ("selective", False), ("selective", True), ("full", False))
    for (how, sequence), printed in zip(hows, GPTS[name].percent, strict=True):
        assert 100 * sum(kept(program(name, how, sequence))) / whole == pytest.approx(printed, abs=0.15)


@pytest.mark.parametrize("name", GPTS)
def test_states(program: Callable[[str, str, bool], Graph], name: str) -> None:
    """18 bytes a parameter: fp16 weight 2, fp32 gradient, master copy and two moments 4 each. Figure 1.

    The figure counts 12 h^2 a layer; biases and LayerNorms are 13 h more, and some of those are not split.
    """
    gpt = GPTS[name]
    parameters = program(name, "none", False).facts.parameters
    layer = sum(p.numel for p in parameters if p.names[0].startswith("layers.1."))
    assert 18 * layer * gpt.layers / gpt.p / GIB == pytest.approx(gpt.states, rel=0.003)


@pytest.mark.parametrize("sequence", [False, True])
def test_selective_repeats_scores_alone(program: Callable[[str, str, bool], Graph], sequence: bool) -> None:
    """Of the matmuls only Q K^T runs again, 2 b s^2 h / t FLOPs a layer, and no collective does."""
    gpt = GPTS["22B"]
    graph = program("22B", "selective", sequence)
    again = [op for op, count in graph.ops() if op.phase == "recompute" for _ in range(count)]
    works = zip(graph.counts, graph.blocks, annotated(graph), strict=True)
    flops = sum(n * w.flops for n, b, row in works if b.phase == "recompute" for w in row if w.engine == "matrix")
    assert flops == 3 * 2 * gpt.b * S**2 * gpt.h // T
    assert not [op.name for op in again if op.name.startswith("torchperf.")]


@pytest.mark.parametrize("sequence", [False, True])
def test_full_repeats_collectives(program: Callable[[str, str, bool], Graph], sequence: bool) -> None:
    """The forward of a layer has two all-reduces; under sequence parallelism two gathers and two reduce-scatters."""
    graph = program("22B", "full", sequence)
    found: dict[str, int] = {}
    for op, count in graph.ops():
        if op.phase == "recompute" and op.name.startswith("torchperf."):
            found[op.name] = found.get(op.name, 0) + count
    expected = {"torchperf.all_gather": 6, "torchperf.reduce_scatter": 6} if sequence else {"torchperf.all_reduce": 6}
    assert found == expected
