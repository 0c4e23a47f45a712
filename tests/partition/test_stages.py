"""Pipeline stages: which layers, which parameters, and what passes between them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchperf.graph.errors import TorchperfError
from torchperf.graph.plan import Plan
from torchperf.partition.stages import chunks_of, layers_of, split_layers
from torchperf.partition.tensor_parallel import tensor_parallel

HIDDEN = 2 * 512 * 4096  # bytes of a residual stream: bf16, 512 tokens, hidden 4096


def plan(pp: int, **how: object) -> Plan:
    return Plan(pp=pp, **how).resolved(pp)  # type: ignore[arg-type]


@given(layers=st.integers(1, 200), pp=st.integers(1, 16), virtual=st.integers(1, 4))
def test_layers_are_shared_out_evenly(layers: int, pp: int, virtual: int) -> None:
    """Every layer once; sizes differ by one at most, and the ends, with embedding and head, are never the larger."""
    virtual = virtual if pp > 1 else 1
    if pp * virtual > layers:
        with pytest.raises(TorchperfError, match=f"`--pp {pp}` makes {pp * virtual} stages"):
            split_layers(layers, plan(pp, virtual_stages=virtual))
        return
    sizes = split_layers(layers, plan(pp, virtual_stages=virtual))
    assert sum(sizes) == layers
    assert max(sizes) - min(sizes) <= 1
    if len(sizes) > 2:
        assert max(sizes[0], sizes[-1]) <= max(sizes[1:-1])


def test_an_uneven_split_is_the_users(captured) -> None:
    graph = captured("llama-3.1-8b").bind(batch=1, seq=512)
    chunks = chunks_of(graph, plan(2, pp_split=(12, 20)))
    assert [len(c.layers) for c in chunks] == [12, 20]
    with pytest.raises(TorchperfError, match="`--pp-split` adds up to 30 layers"):
        chunks_of(graph, plan(2, pp_split=(10, 20)))
    with pytest.raises(TorchperfError, match="`--pp-split` has 3 parts"):
        plan(2, pp_split=(10, 10, 12))


def test_each_parameter_is_on_one_stage_and_the_residual_stream_is_sent(captured) -> None:
    graph = captured("llama-3.1-8b").bind(batch=1, seq=512)
    chunks = chunks_of(graph, plan(4))
    assert [p.names for c in chunks for p in c.graph.facts.parameters] == [p.names for p in graph.facts.parameters]
    assert [c.sends for c in chunks] == [HIDDEN] * 3 + [0]
    assert [c.returns for c in chunks] == [0] + [HIDDEN] * 3
    assert sum(len(c.graph.segments) for c in chunks) == len(graph.segments)
    names = [[p.names[0] for p in c.graph.facts.parameters] for c in chunks]
    assert names[0][0] == "model.embed_tokens.weight"
    assert names[-1][-2:] == ["model.norm.weight", "lm_head.weight"]


def test_under_sequence_parallelism_a_rank_sends_its_slice(captured) -> None:
    graph = captured("llama-3.1-8b").bind(batch=1, seq=512)
    local = tensor_parallel(graph, 8, sequence=True).program
    assert [c.sends for c in chunks_of(local, plan(4))] == [HIDDEN // 8] * 3 + [0]


def test_tied_weights_are_on_both_ends_and_their_gradient_is_not_sent(captured) -> None:
    """GPT-2: the head's share of wte's gradient, 77 MB, is summed once a step; only the residual stream goes back."""
    graph = captured("gpt2").bind(batch=1, seq=512)
    chunks = chunks_of(graph, plan(3))
    tied = ("transformer.wte.weight", "lm_head.weight")
    holders = [tied in [p.names for p in c.graph.facts.parameters] for c in chunks]
    assert holders == [True, False, True]
    assert [c.returns for c in chunks] == [0, 2 * 512 * 768, 2 * 512 * 768]


def test_an_encoder_is_passed_on_to_every_stage_of_the_decoder(captured) -> None:
    """T5: the decoder's layers read the encoder's output, so it goes through all stages in between."""
    graph = captured("t5-base").bind(batch=1, seq=512)
    assert len(layers_of(graph)) == 24
    chunks = chunks_of(graph, plan(4))
    encoder = 2 * 512 * 768
    assert chunks[1].sends == encoder
    assert chunks[2].sends > chunks[1].sends + encoder  # the decoder's own stream, its position bias, the encoder's


def test_a_model_without_layers_has_no_stages(shallow) -> None:
    graph = shallow("llama").bind(batch=1, seq=64)
    with pytest.raises(TorchperfError, match="`--pp 4` makes 4 stages of 3 layers"):
        chunks_of(graph, plan(4))
