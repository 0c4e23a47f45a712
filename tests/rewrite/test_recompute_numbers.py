"""Real numbers: the gradients are the same, whatever backward makes again."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchperf
from torchperf.graph.graph import Graph
from torchperf.rewrite import recompute

SMALL = {
    "num_hidden_layers": 3, "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "vocab_size": 56,
    "max_position_embeddings": 64,
}  # fmt: skip
MODELS: dict[str, dict[str, Any]] = {  # ALBERT calls one layer again and again: it has no repeated one
    "llama": {"architectures": ["LlamaForCausalLM"], "num_key_value_heads": 2, **SMALL},
    "gpt2": {"architectures": ["GPT2LMHeadModel"], "n_layer": 3, "n_embd": 32, "n_head": 4, "vocab_size": 56,
             "n_positions": 64},
    "bert": {"architectures": ["BertForMaskedLM"], **SMALL},
    "albert": {"architectures": ["AlbertForMaskedLM"], "embedding_size": 16, **SMALL},
    "mixtral": {"architectures": ["MixtralForCausalLM"], "num_key_value_heads": 2, "num_local_experts": 4,
                "num_experts_per_tok": 2, **SMALL},
    "t5": {"architectures": ["T5ForConditionalGeneration"], "d_model": 32, "d_ff": 48, "d_kv": 8, "num_heads": 4,
           "num_layers": 3, "vocab_size": 56, "decoder_start_token_id": 0},
    "vit": {"architectures": ["ViTForImageClassification"], "hidden_size": 32, "intermediate_size": 48,
            "num_hidden_layers": 3, "num_attention_heads": 4, "image_size": 32, "patch_size": 8},
}  # fmt: skip


@pytest.fixture(scope="module")
def interpreter() -> ModuleType:
    """What runs a graph on float64 numbers: tests/partition/interpreter.py."""
    path = Path(__file__).parents[1] / "partition" / "interpreter.py"
    spec = importlib.util.spec_from_file_location("recompute_interpreter", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def recorded_small(cache_folder: Path) -> Callable[[str, str], Graph]:
    """`recorded_small("llama", "eager")`: three layers, their attention as transformers writes it in that form."""
    from torchperf.frontend.capture import capture
    from torchperf.frontend.hf import from_config

    @cache
    def record(kind: str, form: str) -> Graph:
        subject = from_config({"model_type": kind, **MODELS[kind]}, kind)
        subject.module.set_attn_implementation(form)  # type: ignore[operator]
        subject.fixed = "one size is enough for this test"
        subject.sizes = {"batch": 2, **({} if "seq" not in subject.sizes else {"seq": 8})}
        graph = capture(subject, "train", subject.sizes)
        return graph.bind(**dict(graph.facts.sizes))

    return record


def gradients(interpreter: ModuleType, graph: Graph) -> dict[int, Tensor]:
    """Every gradient that the step makes, by storage."""
    machine = interpreter.Machine(graph).run()
    kinds = {
        storage: block.storages[slot].kind
        for block, segment in ((graph.blocks[s.block], s) for s in graph.segments)
        for slot, storage in enumerate(segment.storages)
    }
    return {i: t for i, t in machine.storages.items() if kinds[i] == "grad"}


def too_early(graph: Graph) -> Iterator[str]:
    """Ops, views among them, that look at an activation before it is made."""
    made: set[int] = set()
    for segment in graph.segments:
        block = graph.blocks[segment.block]
        for op in block.ops:
            of = [segment.storages[v.slot] for v in op.inputs if block.storages[v.slot].kind == "activation"]
            if not made.issuperset(of):
                yield f"{op.name} of {op.module} in {block.phase}"
            made.update(segment.storages[v.slot] for v in op.outputs)


@pytest.mark.parametrize("form", ["sdpa", "eager"])
@pytest.mark.parametrize("kind", MODELS)
def test_gradients_stay(
    interpreter: ModuleType, recorded_small: Callable[[str, str], Graph], kind: str, form: str
) -> None:
    if kind == "t5" and form == "sdpa":
        pytest.skip("transformers writes T5's attention in one form")
    graph = recorded_small(kind, form)
    expected = gradients(interpreter, graph)
    assert any(t.abs().max() > 0 for t in expected.values())
    for how in ("full", "full:2", "selective", "selective-ops"):
        again = recompute.apply(graph, how)
        if form == "eager" if how == "selective" else kind != "albert":
            assert "recompute" in {block.phase for block in again.blocks}
        assert not list(too_early(again))
        found = gradients(interpreter, again)
        assert found.keys() == expected.keys()
        for storage, gradient in expected.items():
            torch.testing.assert_close(found[storage], gradient, rtol=1e-9, atol=1e-12, msg=lambda m: f"{how}: {m}")  # noqa: B023


class Looped(nn.Module):
    """Three layers, run through twice: each is called again, and its gradients add up."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 24), nn.GELU()) for _ in range(3)])
        self.back = nn.ModuleList([nn.Linear(24, 16) for _ in range(3)])

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(2):
            for layer, back in zip(self.layers, self.back, strict=True):
                x = x + back(layer(x))
        return x


@pytest.mark.parametrize("how", ["full", "selective-ops"])
def test_a_layer_called_twice_runs_again_twice(interpreter: ModuleType, how: str) -> None:
    """Each time just before its own backward: what two passes make again is never held at once."""
    graph = torchperf.capture(Looped(), torch.zeros(2, 8, 16)).bind()
    again = recompute.apply(graph, how)
    expected, found = gradients(interpreter, graph), gradients(interpreter, again)
    assert found.keys() == expected.keys()
    assert all(torch.allclose(found[i], expected[i], rtol=1e-9, atol=1e-12) for i in expected)
    order = [(again.blocks[s.block].phase, s.module) for s in again.segments]
    runs = [module for phase, module in order if phase == "recompute"]
    assert runs
    for at, (phase, module) in enumerate(order):
        if phase == "recompute":
            assert order[at + 1] == ("backward", module)
