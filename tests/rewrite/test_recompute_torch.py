"""torch.utils.checkpoint with the selective policy of torchtitan, run for real, against `selective-ops`."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts
from torch.utils.flop_counter import FlopCounterMode

import torchperf
from torchperf.annotate import works as annotated
from torchperf.graph.graph import Graph
from torchperf.rewrite import precision, recompute
from torchperf.schedule import memory

aten = torch.ops.aten
LINEAR = (aten.mm.default, aten.addmm.default)
ATTENTION = aten._scaled_dot_product_flash_attention_for_cpu.default


class Layer(nn.Module):
    """A Llama layer; with `bias`, its linear layers are addmm."""

    def __init__(self, width: int, heads: int, bias: bool) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias) for _ in range(4))
        self.gate, self.up = nn.Linear(width, 3 * width, bias), nn.Linear(width, 3 * width, bias)
        self.down = nn.Linear(3 * width, width, bias)

    def forward(self, x: torch.Tensor) -> Any:
        b, t, c = x.shape
        h = self.norm_1(x)
        q, k, v = (p(h).view(b, t, self.heads, -1).transpose(1, 2) for p in (self.q, self.k, self.v))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).reshape(b, t, c))
        h = self.norm_2(x)
        return x + self.down(functional.silu(self.gate(h)) * self.up(h))


class Net(nn.Module):
    """Three layers, each a region of checkpoint where `selective`; `caches` holds what torch keeps for each."""

    def __init__(self, bias: bool, selective: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Layer(32, 4, bias) for _ in range(3)])
        self.selective = selective
        self.caches: list[Any] = []

    def contexts(self) -> Any:
        counts: dict[bool, int] = defaultdict(int)

        def policy(context: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
            if op in LINEAR:
                counts[context.is_recompute] += 1
            kept = op is ATTENTION or (op in LINEAR and counts[context.is_recompute] % 2)
            return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE

        pair = create_selective_checkpoint_contexts(policy)
        self.caches.append(pair[0].storage)
        return pair

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False, context_fn=self.contexts) if self.selective else layer(x)
        return x


def measured(bias: bool, selective: bool) -> tuple[int, Counter[int]]:
    """FLOPs of forward and backward that torch counts, and the bytes of each storage that it caches."""
    net = Net(bias, selective)
    with FlopCounterMode(display=False) as counter:
        out = net(torch.randn(2, 16, 32))
        kept = [wrapped for cache in net.caches for by_call in cache.values() for wrapped in by_call.values()]
        tensors = [w.val for w in tree_leaves(kept) if isinstance(getattr(w, "val", None), torch.Tensor)]
        storages = {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in tensors}
        out.sum().backward()
    return counter.get_total_flops(), Counter(storages.values())


def flops(graph: Graph, phase: str) -> int:
    rows = zip(graph.counts, graph.blocks, annotated(graph), strict=True)
    return sum(n * w.flops for n, block, row in rows if block.phase == phase for w in row if w.engine == "matrix")


@pytest.mark.parametrize("bias", [False, True])
def test_selective_ops_as_torch_runs_it(bias: bool) -> None:
    """The FLOPs that run again, and every storage that is kept until backward, but for the layers' inputs."""
    plain = precision.apply(torchperf.capture(Net(bias), torch.zeros(2, 16, 32)).bind(), precision.precision("fp32"))
    ours = recompute.apply(plain, "selective-ops")
    once, _ = measured(bias, selective=False)
    again, cached = measured(bias, selective=True)
    assert flops(ours, "recompute") == again - once > 0
    assert flops(ours, "forward") == flops(plain, "forward")
    assert flops(ours, "backward") == flops(plain, "backward")
    saved = memory.saved(ours, annotated(ours)).values()
    inputs = Counter({2 * 16 * 32 * 4: 3})
    loss = Counter({4: 1})
    assert Counter(life.nbytes for life in saved) == cached + inputs + loss
