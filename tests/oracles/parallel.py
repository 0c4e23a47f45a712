"""What PyTorch itself sends under tensor parallelism and FSDP2: a small Llama, and a recorder of collectives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn import functional
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

import torchperf
from torchperf.partition.fully_sharded import Group, Sharding
from torchperf.partition.fully_sharded import fully_sharded as sharded_program
from torchperf.rewrite import precision

KINDS = {
    "all_reduce": "all_reduce", "all_reduce_": "all_reduce", "allreduce_": "all_reduce",
    "all_gather_into_tensor": "all_gather", "all_gather_into_tensor_out": "all_gather",
    "_allgather_base_": "all_gather", "reduce_scatter_tensor": "reduce_scatter",
    "reduce_scatter_tensor_out": "reduce_scatter", "_reduce_scatter_base_": "reduce_scatter",
    "all_to_all_single": "all_to_all", "alltoall_base_": "all_to_all",
}  # fmt: skip
PLAN = {  # what `parallelized` does, for us
    "tok_embeddings": "rowwise", "output": "colwise", "layers.*.attention.wq": "colwise",
    "layers.*.attention.wk": "colwise", "layers.*.attention.wv": "colwise", "layers.*.attention.wo": "rowwise",
    "layers.*.feed_forward.w1": "colwise", "layers.*.feed_forward.w3": "colwise", "layers.*.feed_forward.w2": "rowwise",
}  # fmt: skip
Sent = tuple[str, str, int]  # phase, kind, bytes of the whole tensor on one rank's side


class Recorder(TorchDispatchMode):
    """Collectives and matrix products that run on this rank.

    Left out: what DTensor runs on fake tensors to learn a global shape, where `fake` is not set.
    """

    def __init__(self, fake: bool = False) -> None:
        super().__init__()
        self.fake = fake
        self.sent: list[Sent] = []
        self.products: list[tuple[str, int, int, int]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented
        out = func(*args, **(kwargs or {}))
        if self.fake or not any(isinstance(a, FakeTensor) for a in args):
            self._note(func, args, out)
        return out

    def _note(self, func: Any, args: Any, out: Any) -> None:
        phase = "backward" if torch._C._current_graph_task_id() != -1 else "forward"
        space, name = func.name().split("::")[0], func.name().split("::")[1].split(".")[0]
        if space in ("c10d", "_c10d_functional"):
            if name in KINDS:
                tensors = [t for a in (*args, out) for t in _tensors(a)]
                self.sent.append((phase, KINDS[name], max(t.numel() * t.element_size() for t in tensors)))
        elif name in ("mm", "addmm"):
            a, b = args[-2], args[-1]
            self.products.append((phase, a.shape[0], a.shape[1], b.shape[1]))
        elif name == "_grouped_mm":
            self.products.append((phase, *_grouped(args[0].shape, args[1].shape)))


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)


def _grouped(a: Any, b: Any) -> tuple[int, int, int]:
    return int(a[-2]), int(a[-1]), int(b[-1])


def sent_by(program: Any) -> Counter[Sent]:
    """The same from our program of one rank: each collective as often as its block runs, single numbers left out."""
    found: Counter[Sent] = Counter()
    for op, count in program.ops():
        if op.name.startswith("torchperf.") and op.name[10:] in ("all_reduce", "all_gather", "reduce_scatter"):
            nbytes = max(op.inputs[0].nbytes, op.outputs[0].nbytes)
            if max(op.inputs[0].numel, op.outputs[0].numel) > 1:
                found[op.phase, op.name[10:], nbytes] += count
    return found


def products_of(program: Any) -> Counter[tuple[str, int, int, int]]:
    """Local shapes of our matrix products."""
    found: Counter[tuple[str, int, int, int]] = Counter()
    for op, count in program.ops():
        name = op.name.split(".")[1]
        if name in ("mm", "addmm"):
            a, b = op.inputs[-2].shape, op.inputs[-1].shape
            found[op.phase, a[0], a[1], b[1]] += count
        elif name == "_grouped_mm":
            found[(op.phase, *_grouped(op.inputs[0].shape, op.inputs[1].shape))] += count
    return found


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, kv_heads: int) -> None:
        super().__init__()
        self.head_dim = width // heads
        self.wq, self.wo = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.wk, self.wv = (nn.Linear(width, kv_heads * self.head_dim, bias=False) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, s, _ = x.shape
        q, k, v = (w(x).view(b, s, -1, self.head_dim).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.wo(y.transpose(1, 2).reshape(b, s, -1))


class FeedForward(nn.Module):
    def __init__(self, width: int, ffn: int) -> None:
        super().__init__()
        self.w1, self.w3 = nn.Linear(width, ffn, bias=False), nn.Linear(width, ffn, bias=False)
        self.w2 = nn.Linear(ffn, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.w2(functional.silu(self.w1(x)) * self.w3(x))


class Layer(nn.Module):
    def __init__(self, width: int, ffn: int, heads: int, kv_heads: int) -> None:
        super().__init__()
        self.attention, self.feed_forward = Attention(width, heads, kv_heads), FeedForward(width, ffn)
        self.attention_norm, self.ffn_norm = nn.RMSNorm(width), nn.RMSNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.feed_forward(self.ffn_norm(x))


class Llama(nn.Module):
    """Llama's blocks (without rotary embeddings, which hold no parameter), as torchtitan names them."""

    def __init__(self, width: int = 64, ffn: int = 112, heads: int = 16, kv_heads: int = 8, vocab: int = 96,
                 layers: int = 4) -> None:  # fmt: skip
        super().__init__()
        self.tok_embeddings, self.norm = nn.Embedding(vocab, width), nn.RMSNorm(width)
        self.layers = nn.ModuleList([Layer(width, ffn, heads, kv_heads) for _ in range(layers)])
        self.output = nn.Linear(width, vocab, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tok_embeddings(ids)
        for layer in self.layers:
            x = layer(x)
        return self.output(self.norm(x))


@contextmanager
def world(ranks: int) -> Iterator[None]:
    """This process as rank 0 of `ranks`, with nobody at the other end."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    try:
        yield
    finally:
        dist.destroy_process_group()


def parallelized(model: Llama, ranks: int, *, sequence: bool) -> Llama:
    """torchtitan's plan for Llama (torchtitan/models/llama3/infra/parallelize.py, `apply_non_moe_tp`)."""
    mesh = init_device_mesh("cpu", (ranks,), mesh_dim_names=("tp",))
    between = Shard(1) if sequence else Replicate()
    parallelize_module(model, mesh, {
        "tok_embeddings": RowwiseParallel(input_layouts=Replicate(), output_layouts=between),
        **({"norm": SequenceParallel()} if sequence else {}),
        "output": ColwiseParallel(input_layouts=between),
    })  # fmt: skip
    for layer in model.layers:
        gather = PrepareModuleInput(input_layouts=(between,), desired_input_layouts=(Replicate(),))
        parallelize_module(layer, mesh, {
            **({"attention_norm": SequenceParallel(), "ffn_norm": SequenceParallel()} if sequence else {}),
            "attention": gather, "feed_forward": gather,
            "attention.wq": ColwiseParallel(), "attention.wk": ColwiseParallel(), "attention.wv": ColwiseParallel(),
            "attention.wo": RowwiseParallel(output_layouts=between),
            "feed_forward.w1": ColwiseParallel(), "feed_forward.w3": ColwiseParallel(),
            "feed_forward.w2": RowwiseParallel(output_layouts=between),
        })  # fmt: skip
    return model


def mesh_of(ranks: int) -> DeviceMesh:
    return init_device_mesh("cpu", (ranks,), mesh_dim_names=("dp",))


def fully_sharded(model: Llama, ranks: int, mesh: DeviceMesh | None = None) -> Llama:
    """FSDP2: one unit a layer, and the root for the rest (embedding, norm, head)."""
    mesh = mesh or mesh_of(ranks)
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def sent_by_fsdp(model: Llama, ranks: int) -> Counter[Sent]:
    """What our program of one rank sends under FSDP, in the parameters' own element type."""
    graph = torchperf.capture(model, torch.zeros(2, 16, dtype=torch.long, device="meta")).bind()
    graph = precision.apply(graph, precision.precision("fp32"))
    program = sharded_program(graph, Sharding(Group(ranks, 1), Group(ranks, 1), reduce=graph.facts.parameters[0].dtype))
    found: Counter[Sent] = Counter()
    for count, block in zip(program.counts, program.blocks, strict=True):
        for op in block.ops:
            if op.attr("role") == "fsdp":
                whole = max(op.inputs[0].nbytes, op.outputs[0].nbytes)
                found[block.phase, op.name.removeprefix("torchperf."), whole] += count
    return found
