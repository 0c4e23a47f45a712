"""Recompute by kinds of modules: what is recognised, what is kept, what is repeated, and that gradients stay."""

from __future__ import annotations

import importlib.util
import sys
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import torchperf
from torchperf.annotate import works as annotated
from torchperf.graph.graph import Graph
from torchperf.partition.expert_parallel import expert_parallel
from torchperf.partition.tensor_parallel import tensor_parallel
from torchperf.rewrite import recompute
from torchperf.rewrite.recompute_kinds import groups
from torchperf.schedule import memory


def helper(name: str) -> ModuleType:
    path = Path(__file__).parents[1] / "partition" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"modules_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


conftest, models, interpreter = helper("conftest"), helper("expert_models"), helper("interpreter")
BATCH, SEQ, WIDTH, LAYERS = 2, 8, 32, 2
MOE = ("layernorm", "moe_act", "moe", "layernorm+moe_act", "layernorm+moe", "moe_act+moe")
DENSE = ("layernorm", "mlp", "layernorm+mlp", "core_attn+layernorm+mlp")
CASES = [
    *((kind, how) for kind in ("mixtral", "gpt_oss") for how in MOE),
    *((kind, how) for kind in ("llama", "gpt2", "bert") for how in DENSE),
    *(("deepseek_v3", how) for how in (
        *MOE, "mlp", "mla_up_proj", "shared_experts", "mla_up_proj+mlp",
        "core_attn+layernorm+moe_act+mla_up_proj+mlp+moe+shared_experts")),
]  # fmt: skip


@pytest.fixture(scope="module")
def small(cache_folder: Path) -> Callable[[str], Graph]:
    """`small("mixtral")`: a model in miniature, 2 sequences of 8 tokens."""

    @cache
    def make(kind: str) -> Graph:
        config = models.GPT_OSS if kind == "gpt_oss" else {"model_type": kind, **conftest.TINY[kind]}
        found: Graph = conftest._record(config, SEQ, BATCH)
        return found

    return make


def kept(graph: Graph) -> int:
    return sum(life.nbytes for life in memory.saved(graph, annotated(graph)).values())


def gradients(graph: Graph) -> dict[int, Any]:
    machine = interpreter.Machine(graph).run()
    grads = {
        storage
        for segment in graph.segments
        for storage, slot in zip(segment.storages, graph.blocks[segment.block].storages, strict=True)
        if slot.kind == "grad"
    }
    return {i: t for i, t in machine.storages.items() if i in grads}


def repeated(graph: Graph) -> Counter[str]:
    """Names of the ops that run again, without views."""
    return Counter(
        op.name.split(".")[1]
        for segment in graph.segments
        for op in graph.blocks[segment.block].ops
        if graph.blocks[segment.block].phase == "recompute"
    )


@pytest.mark.parametrize(("kind", "how"), CASES)
def test_gradients_stay(small: Callable[[str], Graph], kind: str, how: str) -> None:
    graph = small(kind)
    again = recompute.apply(graph, f"modules:{how}")
    assert kept(again) < kept(graph)
    assert "recompute" in {block.phase for block in again.blocks}
    expected, found = gradients(graph), gradients(again)
    assert found.keys() == expected.keys()
    assert any(t.abs().max() > 0 for t in expected.values())
    for storage, gradient in expected.items():
        torch.testing.assert_close(found[storage], gradient, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("llama", {"layernorm": 2, "mlp": 1}), ("gpt2", {"layernorm": 2, "mlp": 1}),
     ("mixtral", {"layernorm": 2, "moe": 1, "moe_act": 1}),
     ("deepseek_v3", {"layernorm": 4, "mlp": 1, "mla_up_proj": 2, "moe": 1, "moe_act": 1, "shared_experts": 1})],
)  # fmt: skip
def test_kinds_of_a_model(small: Callable[[str], Graph], kind: str, expected: dict[str, int]) -> None:
    """DeepSeek's dense and MoE layers are two blocks; norms of latents, heads and the last one are not a layer's."""
    blocks = [block for block in small(kind).blocks if block.phase == "forward" and block.module]
    assert Counter(group.kind for block in blocks for group in groups(block)) == expected


def test_bytes_by_hand(small: Callable[[str], Graph]) -> None:
    """A norm forgets its result; an expert's activation SwiGLU's two results, for 2 rows a token of 48 bf16."""
    graph, tokens = small("mixtral"), BATCH * SEQ
    assert kept(graph) - kept(recompute.apply(graph, "modules:moe_act")) == LAYERS * 2 * (2 * tokens) * 48 * 2
    # float copy of the input (4), its inverse root (4 a token), normalised (2), result (2)
    per_norm = tokens * (WIDTH * (4 + 2 + 2) + 4)
    less = kept(graph) - kept(recompute.apply(graph, "modules:layernorm"))
    assert 2 * LAYERS * tokens * WIDTH * 2 < less <= 2 * LAYERS * per_norm


def test_what_is_repeated(small: Callable[[str], Graph]) -> None:
    """A checkpointed module from its input, whole; a result that is discarded costs no product."""
    dense = repeated(recompute.apply(small("llama"), "modules:mlp"))
    assert dense["mm"] == LAYERS * 3
    assert repeated(recompute.apply(small("llama"), "modules:layernorm"))["mm"] == 0
    deep = repeated(recompute.apply(small("deepseek_v3"), "modules:mla_up_proj"))
    assert deep["mm"] == 3 * 2
    assert repeated(recompute.apply(small("mixtral"), "modules:moe_act"))["_grouped_mm"] == 0
    routed = repeated(recompute.apply(small("mixtral"), "modules:moe"))
    assert (routed["_grouped_mm"], routed["topk"], routed["sort"]) == (2 * LAYERS, LAYERS, LAYERS)


def test_collectives_run_again_with_what_needs_them(
    small: Callable[[str], Graph], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torchperf.partition.infer.S_PER_COLLECTIVE", 0.0)
    monkeypatch.setattr("torchperf.partition.infer.SENT_PER_S", 1e14)
    local = tensor_parallel(small("deepseek_v3"), 2, sequence=True, strict=False, local_experts=True).program
    program = expert_parallel(local, 4).program
    both = {"all_gather": 1, "reduce_scatter": 1}
    expected = {
        "layernorm": {}, "moe_act": {}, "mla_up_proj": {}, "mlp": both,
        "shared_experts": {name: 2 * n for name, n in both.items()},
        "moe": {"all_to_all": 4, **{name: 2 * n for name, n in both.items()}},
    }  # fmt: skip
    for how, collectives in expected.items():
        again = recompute.apply(program, f"modules:{how}")
        found = repeated(again)
        assert {n: found[n] for n in ("all_gather", "reduce_scatter", "all_to_all") if found[n]} == collectives, how
        assert kept(again) < kept(program)


@pytest.mark.parametrize("attention", ["flash", "unfused"])
def test_core_attention_is_selective(shallow: Callable[..., Any], attention: str) -> None:
    def kept_by(how: str) -> int:
        e = torchperf.estimate(
            shallow("llama"), gpu="h100-sxm-80gb", seq_len=256, attention=attention, runtime="eager", recompute=how
        )  # fmt: skip
        return int(e.memory.activations)

    assert kept_by("modules:core_attn") == kept_by("selective")
    assert (kept_by("modules:core_attn") < kept_by("none")) == (attention == "unfused")


@pytest.mark.parametrize("how", ["modules:", "modules:moes", "modules:mlp+", "modules:mlp+mlp", "modules:mlp,moe"])
def test_no_kind_of_module(small: Callable[[str], Graph], how: str) -> None:
    with pytest.raises(torchperf.TorchperfError) as caught:
        recompute.apply(small("llama"), how)
    assert ("flag", "--recompute") in caught.value.facts
    assert "mla_up_proj" in (caught.value.hint or "")


@pytest.mark.parametrize("kind", ["moe", "moe_act", "shared_experts", "mla_up_proj"])
def test_a_kind_that_the_model_lacks(small: Callable[[str], Graph], kind: str) -> None:
    with pytest.raises(torchperf.TorchperfError, match=f"no layer has a `{kind}`"):
        recompute.apply(small("llama"), f"modules:layernorm+{kind}")
