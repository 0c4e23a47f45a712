"""Kinds of recompute: what is kept, what runs again, and where."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn

import torchperf
from torchperf.annotate import works as annotated
from torchperf.graph.graph import Graph
from torchperf.hardware import load_runtime
from torchperf.pipeline import lower
from torchperf.rewrite import recompute
from torchperf.rewrite.recompute_region import is_view
from torchperf.schedule import memory

HOWS = ("full", "full:2", "selective", "selective-ops")
MODELS = ("llama", "gpt2")
FORMS = [("eager", "auto"), ("eager", "unfused"), ("compile", "auto"), ("compile", "unfused")]


@pytest.fixture
def program(shallow: Callable[..., Any]) -> Callable[..., Graph]:
    """`program("llama", "full")`: three small layers, lowered."""

    def make(
        name: str, how: str, runtime: str = "eager", attention: str = "auto", batch: int = 2, seq: int = 256
    ) -> Graph:
        graph = shallow(name).bind(batch=batch, seq=seq)
        return lower(graph, "bf16-mixed", None, how, attention, load_runtime(runtime))

    return make


def flops(graph: Graph, phase: str, module: str = "") -> int:
    """Matmul and attention FLOPs of a phase, in modules whose path ends so."""
    return sum(
        count * work.flops_noncausal
        for count, block, row in zip(graph.counts, graph.blocks, annotated(graph), strict=True)
        for op, work in zip(block.ops, row, strict=True)
        if block.phase == phase and work.engine == "matrix" and op.module.endswith(module)
    )


def kept(graph: Graph) -> dict[str, int]:
    """Bytes saved for backward, by the layer that made them."""
    found: dict[str, int] = {}
    for life in memory.saved(graph, annotated(graph)).values():
        layer = graph.segments[life.birth[0]].module
        found[layer] = found.get(layer, 0) + life.nbytes
    return found


def layers(graph: Graph, phase: str) -> list[str]:
    """The layers that have a segment of that phase."""
    return list(dict.fromkeys(s.module for s in graph.segments if graph.blocks[s.block].phase == phase and s.module))


@pytest.mark.parametrize(
    "how", ["half", "full:", "full:0", "full:-1", "full:two", "none:1", "selective:2", "", "full:N"]
)
def test_unknown(program: Callable[..., Graph], how: str) -> None:
    with pytest.raises(torchperf.TorchperfError) as caught:
        program("llama", how)
    assert ("flag", "--recompute") in caught.value.facts
    assert "none, selective, selective-ops, full, full:N" in (caught.value.hint or "")


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(("runtime", "attention"), FORMS)
@pytest.mark.parametrize("how", HOWS)
def test_nothing_is_read_before_it_is_made(
    program: Callable[..., Graph], model: str, runtime: str, attention: str, how: str
) -> None:
    """Nor twice: an op of the phase `recompute` writes storages of its own."""
    graph = program(model, how, runtime, attention)
    made: set[int] = set()
    for segment in graph.segments:
        block = graph.blocks[segment.block]
        own: set[int] = set()
        for op in block.ops:
            for value in op.inputs:
                known = block.storages[value.slot].kind != "activation" or segment.storages[value.slot] in made | own
                assert known, f"{op.name} of {op.module} in {block.phase}"
            own.update(segment.storages[value.slot] for value in op.outputs)
        if block.phase == "recompute":
            written = {segment.storages[v.slot] for op in block.ops if not is_view(op) for v in op.outputs}
            assert not written & made
            assert all(op.phase == "recompute" for op in block.ops)
        made |= own


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("how", HOWS)
def test_keeps_less_and_computes_the_same(program: Callable[..., Graph], model: str, how: str) -> None:
    """Forward and backward stay as they were; the FLOPs that run again come on top, and never exceed forward's."""
    plain, again = (program(model, h, attention="unfused", seq=512) for h in ("none", how))
    assert sum(kept(again).values()) < sum(kept(plain).values())
    for phase in ("forward", "backward"):
        assert flops(again, phase) == flops(plain, phase)
    assert 0 < flops(again, "recompute") <= flops(plain, "forward")
    tops = [memory.peak(graph, annotated(graph)).nbytes for graph in (again, plain)]
    assert tops[0] <= tops[1]


@pytest.mark.parametrize("model", MODELS)
def test_full_repeats_every_layer(program: Callable[..., Graph], model: str) -> None:
    plain, again = program(model, "none"), program(model, "full")
    head = flops(plain, "forward", "lm_head")
    assert flops(again, "recompute") == flops(plain, "forward") - head > 0
    per_layer = {layer: n for layer, n in kept(again).items() if layer}
    assert per_layer == dict.fromkeys(per_layer, 2 * 256 * 64 * 2)  # bf16 [batch, seq, width]: the next one's input


@pytest.mark.parametrize(
    ("how", "stages", "expected"),
    [
        ("full:1", None, [0]),
        ("full:2", None, [0, 1]),
        ("full:9", None, [0, 1, 2]),
        ("full:1", [[0, 1], [2]], [0, 2]),
        ("full:1", [[0], [1, 2]], [0, 1]),
        ("full", [[0], [1, 2]], [0, 1, 2]),
        ("full:1", [[], [1, 2]], [1]),
    ],
)
def test_first_layers_of_each_stage(
    shallow: Callable[..., Any], how: str, stages: Sequence[Sequence[int]] | None, expected: list[int]
) -> None:
    graph = shallow("llama").bind(batch=2, seq=64)
    named = None if stages is None else [[f"model.layers.{i}" for i in stage] for stage in stages]
    again = recompute.apply(graph, how, named)
    assert sorted(layers(again, "recompute")) == [f"model.layers.{i}" for i in expected]
    before, after = kept(graph), kept(again)
    for i in range(3):
        smaller = after.get(f"model.layers.{i}", 0) < before[f"model.layers.{i}"]
        assert smaller == (i in expected)


def test_a_stage_of_unknown_layers(shallow: Callable[..., Any]) -> None:
    graph = shallow("llama").bind(batch=2, seq=64)
    with pytest.raises(torchperf.TorchperfError, match=r"model\.layers\.7"):
        recompute.apply(graph, "full:1", [["model.layers.0"], ["model.layers.7"]])


@pytest.mark.parametrize("model", MODELS)
def test_flash_leaves_nothing_to_selective(shallow: Callable[..., Any], model: str) -> None:
    graph = shallow(model).bind(batch=2, seq=64)
    assert recompute.apply(graph, "selective") is graph


@pytest.mark.parametrize(("model", "per_score"), [("llama", 2), ("gpt2", 5)])
@pytest.mark.parametrize("runtime", ["eager", "compile"])
def test_selective_forgets_the_core(program: Callable[..., Graph], model: str, per_score: int, runtime: str) -> None:
    """2 bytes a score, 5 with dropout, and nothing else. Q K^T runs again, P V does not, in three layers."""
    batch, seq, heads, width = 2, 256, 4, 64
    plain, again = (program(model, how, runtime, "unfused", batch, seq) for how in ("none", "selective"))
    if runtime == "eager":
        less = sum(kept(plain).values()) - sum(kept(again).values())
        assert less == 3 * per_score * batch * heads * seq * seq
    assert flops(again, "recompute") == 3 * 2 * batch * seq * seq * width
    order = [(again.blocks[s.block].phase, s.module) for s in again.segments]
    for at, (phase, layer) in enumerate(order):
        if phase == "recompute":  # in the middle of its layer's backward
            assert order[at - 1] == order[at + 1] == ("backward", layer)


@pytest.mark.parametrize("how", ["selective", "selective-ops", "full"])
def test_layers_alike_share_one_twin(recorded: Callable[..., Any], how: str) -> None:
    """The graph of 24 layers has as many blocks as that of 6."""

    def blocks(num_layers: int) -> int:
        graph = recorded("gpt2", 64, n_layer=num_layers).bind()
        return len(lower(graph, "bf16-mixed", None, how, "unfused", load_runtime("eager")).blocks)

    assert blocks(6) == blocks(24)


def test_selective_ops_by_hand(program: Callable[..., Graph]) -> None:
    """Llama: q, v, gate and down of its 7 linear layers, attention's output and logsumexp, and the layer's input."""
    batch, seq, width, kv, ffn, heads = 2, 256, 64, 32, 172, 4
    graph = program("llama", "selective-ops", batch=batch, seq=seq)
    tokens = batch * seq
    made = 2 * tokens * (width + kv + ffn + width + width) + 4 * tokens * heads
    assert kept(graph)["model.layers.1"] == made + 2 * tokens * width
    again = 2 * tokens * (width * kv + width * width + width * ffn)  # k, o and up
    assert flops(graph, "recompute") == 3 * again


class Checkpointed(nn.Module):
    """Its layers are checkpointed by the model itself."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Sequential(nn.Linear(16, 24), nn.GELU(), nn.Linear(24, 16)) for _ in range(3)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False)
        return x


@pytest.mark.parametrize("how", HOWS)
def test_a_model_that_checkpoints_itself(how: str) -> None:
    graph = torchperf.capture(Checkpointed(), torch.zeros(2, 8, 16, requires_grad=True)).bind()
    assert "recompute" in {block.phase for block in graph.blocks}
    assert recompute.apply(graph, how) is graph
