"""Where collectives come: Megatron's, counted a layer, and the law that a Partial always meets its sum."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from torchperf.partition.infer import infer
from torchperf.partition.state import WHOLE

LAYERS = [  # model, changes, layer, ranks: Megatron has 2 all-reduces a layer forward and 2 backward
    ("llama-3.1-8b", {"num_hidden_layers": 3}, "model.layers.*"),
    ("gpt2-medium", {"seq": 512}, "transformer.h.*"),
    ("nanogpt", {"seq": 512}, "h.*"),
    ("bert-large", {"num_hidden_layers": 3}, "bert.encoder.layer.*"),
    ("vit-b-16", {"num_hidden_layers": 3, "hidden_size": 1024, "num_attention_heads": 16, "intermediate_size": 4096},
     "vit.layers.*"),
]  # fmt: skip
RANKS = (2, 4, 8)


def large(placement: Any, phase: str, kind: str, role: str = "activation") -> dict[str, int]:
    """Collectives of more than a row's statistic, by module, in one run of each block."""
    graph = placement.prepared.factors.graph
    found: dict[str, int] = {}
    seen: dict[str, set[int]] = {}
    for c in placement.collectives:
        if (c.phase, c.kind, c.role) == (phase, kind, role) and len(c.shape) > 1 and c.shape[-1] > 1:
            module = graph.blocks[c.block].module
            found[module] = found.get(module, 0) + 1
            seen.setdefault(module, set()).add(c.block)
    return {module: n // len(seen[module]) for module, n in found.items()}


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize(("model", "changes", "layer"), LAYERS, ids=[m for m, *_ in LAYERS])
def test_two_all_reduces_a_layer_each_way(
    real: Callable[..., Any], model: str, changes: dict[str, int], layer: str, ranks: int
) -> None:
    placement = infer(real(model, **changes), ranks).placement
    assert large(placement, "forward", "all_reduce")[layer] == 2
    assert large(placement, "backward", "all_reduce")[layer] == 2
    assert not any(c.role == "reshape" for c in placement.collectives)


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize(
    ("model", "layer"),
    [("gpt2", "transformer.h.*"), ("bert-base", "bert.encoder.layer.*"), ("vit-b-16", "vit.layers.*")],
)
def test_twelve_heads_over_two_and_four(real: Callable[..., Any], model: str, layer: str, ranks: int) -> None:
    placement = infer(real(model, seq=512), ranks).placement
    assert large(placement, "forward", "all_reduce")[layer] == 2
    assert large(placement, "backward", "all_reduce")[layer] == 2


@pytest.mark.parametrize("ranks", RANKS)
def test_mixtral_sums_once_a_layer_after_the_experts(real: Callable[..., Any], ranks: int) -> None:
    """Trap 5: the sum over ffn waits until tokens are summed over their k experts; [tokens * k, h] is never sent."""
    placement = infer(real("mixtral-8x7b", num_hidden_layers=3), ranks).placement
    assert large(placement, "forward", "all_reduce")["model.layers.*"] == 2
    assert large(placement, "backward", "all_reduce")["model.layers.*"] == 2
    tokens = 2 * 128
    assert all(c.nbytes <= tokens * 4096 * 2 for c in placement.collectives if c.role == "activation")


@pytest.mark.parametrize(("model", "changes", "layer"), LAYERS[:4], ids=[m for m, *_ in LAYERS[:4]])
def test_sequence_parallel_scatters_and_gathers_twice_a_layer(
    real: Callable[..., Any], model: str, changes: dict[str, int], layer: str
) -> None:
    placement = infer(real(model, **changes), 8, sequence=True).placement
    for phase in ("forward", "backward"):
        assert large(placement, phase, "reduce_scatter")[layer] == 2
        assert large(placement, phase, "all_gather")[layer] == 2
        assert layer not in large(placement, phase, "all_reduce")
    assert large(placement, "backward", "all_gather", "regather")[layer] == 2  # X again, for dW: the runtime's choice


def test_sequence_equal_to_hidden_gives_the_same_collectives(
    tiny: Callable[..., Any], megatron: Callable[..., Any]
) -> None:
    apart, same = megatron(tiny("llama", seq=8), 2, sequence=True), megatron(tiny("llama", seq=32), 2, sequence=True)
    assert [(c.kind, c.phase, c.block, c.op, c.role) for c in apart.collectives] == [
        (c.kind, c.phase, c.block, c.op, c.role) for c in same.collectives
    ]


def test_vocabulary_parallel_loss_sends_rows_not_logits(real: Callable[..., Any]) -> None:
    placement = infer(real("llama-3.1-8b", num_hidden_layers=3), 8).placement
    statistics = [c for c in placement.collectives if c.role == "statistic"]
    assert [(c.phase, c.nbytes) for c in statistics] == [("forward", 8 * 256), ("backward", 4 * 256)]


def test_expert_parallelism_sums_tokens_not_rows(tiny: Callable[..., Any], megatron: Callable[..., Any]) -> None:
    """Trap 7: the rows of a rank's experts are ragged, and become a Partial where they go back to their tokens."""
    placement = megatron(tiny("mixtral"), 2, experts=True)
    assert not placement.conflicts
    assert large(placement, "forward", "all_reduce")["model.layers.*"] == 2
    assert any(state.ragged for b in placement.blocks for op in b.ops if op for state in op.outputs)


def test_a_storage_is_summed_once_however_it_is_read(real: Callable[..., Any]) -> None:
    """Trap 4: a Partial belongs to its storage; views of it, and later readers, find it whole."""
    for model, changes in (("llama-3.1-8b", {"num_hidden_layers": 3}), ("nanogpt", {"seq": 512})):
        placement = infer(real(model, **changes), 8).placement
        sums = [(c.block, c.slot) for c in placement.collectives if c.role == "activation"]
        assert len(sums) == len(set(sums))


def test_what_is_whole_joins_a_partial_and_the_sum_is_done_once(
    tiny: Callable[..., Any], megatron: Callable[..., Any]
) -> None:
    """Trap 2: BERT's backward adds dq, dk and dv to a residual that is whole: one all-reduce, not three."""
    placement = megatron(tiny("bert"), 2)
    graph = placement.prepared.factors.graph
    layer = [c for c in placement.collectives if graph.blocks[c.block].module and c.phase == "backward"]
    assert len(layer) == 2 * len({c.block for c in layer})


def test_a_split_batch_is_data_parallelism(tiny: Callable[..., Any]) -> None:
    from torchperf.partition.choose import split_of
    from torchperf.partition.placement import place

    prepared = tiny("llama")
    split = split_of(prepared.factors, prepared.factors.leaf("batch"), 2, axis="dp")
    placement = place(prepared, split)
    assert not placement.conflicts
    runs = sum(c.count for c in placement.collectives if c.role == "gradient")
    assert runs == sum(prepared.factors.copies.values())
    assert all(c.role == "gradient" or c.nbytes <= 8 for c in placement.collectives)  # the loss itself is summed too


CASES = [
    *((kind, 2, False, False) for kind in ("llama", "gpt2", "bert", "mixtral", "t5", "deepseek_v3")),
    *((kind, 2, True, False) for kind in ("llama", "gpt2", "bert", "mixtral", "t5", "deepseek_v3")),
    ("phi3", 4, False, False), ("gemma3_text", 4, True, False), ("mixtral", 2, False, True),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "ranks", "sequence", "experts"), CASES)
def test_a_partial_always_meets_its_sum(
    tiny: Callable[..., Any], megatron: Callable[..., Any], kind: str, ranks: int, sequence: bool, experts: bool
) -> None:
    """What an op reads is what was written, changed by the collectives in between; no gradient stays Partial."""
    placement = megatron(tiny(kind), ranks, sequence=sequence, experts=experts)
    for b, block in enumerate(placement.prepared.factors.graph.blocks):
        states = {slot: state for slot, (state, _) in placement.blocks[b].entry.items()}
        gathered: set[int] = set()
        for i in range(len(block.ops) + 1):
            for c in (
                c for c in placement.blocks[b].collectives if c.op == i and c.role not in ("statistic", "reshape")
            ):
                before = states.get(c.slot, WHOLE)
                if c.kind == "all_gather":
                    assert before.sequence
                    gathered.add(c.slot)
                    continue
                assert before.partial & c.mask == c.mask
                states[c.slot] = type(before)(before.partial & ~c.mask, c.kind == "reduce_scatter", before.ragged)
            if i == len(block.ops) or placement.blocks[b].ops[i] is None:
                continue
            op, placed = block.ops[i], placement.blocks[b].ops[i]
            for value, state in zip(op.inputs, placed.inputs, strict=True):
                held = states.get(value.slot, WHOLE)
                if placement.prepared.factors.blocks[b][i].kind == "create":
                    continue
                assert held.partial == state.partial
                assert held.sequence == state.sequence or value.slot in gathered
            if not placement.prepared.views[b][i]:
                for value, state in zip(op.outputs, placed.outputs, strict=True):
                    states[value.slot] = state
                    gathered.discard(value.slot)
        for slot, storage in enumerate(block.storages):
            assert storage.kind != "grad" or not states.get(slot, WHOLE).partial
