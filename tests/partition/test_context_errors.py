"""What context parallelism refuses, and what it says; forms of attention that only one kind can split."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from torchperf.graph.errors import TorchperfError
from torchperf.graph.graph import Graph
from torchperf.graph.op import Op
from torchperf.partition.context_check import check
from torchperf.partition.context_parallel import context_parallel, local_sequence
from torchperf.partition.context_ulysses import check_heads
from torchperf.rewrite import attention

SEQ = 16
Tiny = Callable[..., Any]
ATTENTION = ("torchperf.attention.default", "torchperf.attention_backward.default")


def graph_of(tiny: Tiny, model: str, seq: int = SEQ, **changes: int) -> Graph:
    graph: Graph = tiny(model, seq=seq, **changes).factors.graph
    return graph


def attentions(graph: Graph) -> list[Op]:
    return [op for op, _ in graph.ops() if op.name in ATTENTION]


@pytest.mark.parametrize(
    ("seq", "ranks", "kind", "own"), [(4096, 4, "ring", 1024), (12, 4, "ulysses", 3), (7, 1, "ring", 7)]
)
def test_positions_of_a_rank(seq: int, ranks: int, kind: str, own: int) -> None:
    assert local_sequence(seq, ranks, kind) == own


def test_a_sequence_that_cannot_be_cut() -> None:
    with pytest.raises(TorchperfError) as caught:
        local_sequence(12, 4, "ring")
    assert ("nearest", "8 or 16") in caught.value.facts
    assert local_sequence(12, 4, "ring", causal=False) == 3
    with pytest.raises(TorchperfError, match="a sequence of 13 is not cut into 4 equal chunks"):
        local_sequence(13, 4, "ulysses")


def test_lengths_within_the_positions_of_the_model() -> None:
    with pytest.raises(TorchperfError) as caught:
        local_sequence(256, 3, "ring", longest=256)
    assert ("nearest", "252") in caught.value.facts
    assert caught.value.hint == "`--seq-len 252`"


def test_degrees_of_heads_divide_the_sequence_too(tiny: Tiny) -> None:
    (op, *_) = attentions(graph_of(tiny, "llama"))
    with pytest.raises(TorchperfError, match="3 ranks do not divide 4 query heads") as caught:
        check_heads(op, 3, 2 * 3)
    assert ("nearest", "2") in caught.value.facts


def test_heads_that_do_not_divide(tiny: Tiny) -> None:
    with pytest.raises(TorchperfError, match="3 ranks do not divide 4 query heads over 2 KV heads") as caught:
        context_parallel(graph_of(tiny, "llama"), 3, kind="ulysses")
    assert ("nearest", "2 or 4") in caught.value.facts


def test_a_window_in_a_ring(tiny: Tiny) -> None:
    graph = graph_of(tiny, "gemma3_text", SEQ // 2, sliding_window=6)
    with pytest.raises(TorchperfError, match="ring attention knows no window") as caught:
        context_parallel(graph, 2, kind="ring")
    assert caught.value.hint == "`--cp-kind ulysses`"
    windows = {op.attr("window") for op in attentions(context_parallel(graph, 2, kind="ulysses"))}
    assert 6 in windows


def test_a_window_that_holds_the_whole_sequence_is_none(tiny: Tiny) -> None:
    graph = graph_of(tiny, "gemma3_text", SEQ // 2, sliding_window=SEQ)
    assert all(op.attr("window") is None for op in attentions(context_parallel(graph, 2, kind="ring")))


def test_an_odd_number_of_positions_is_no_zigzag(tiny: Tiny) -> None:
    with pytest.raises(TorchperfError, match="no two equal chunks"):
        context_parallel(graph_of(tiny, "llama", 7), 2, kind="ring")


def test_attention_with_a_bias_over_positions(tiny: Tiny) -> None:
    for run in (check, lambda graph: context_parallel(graph, 2, kind="ulysses")):
        with pytest.raises(TorchperfError, match="a bias over positions") as caught:
            run(graph_of(tiny, "t5"))
        assert "SelfAttention" in dict(caught.value.facts)["op"]


def test_a_model_without_a_sequence(tiny: Tiny) -> None:
    with pytest.raises(TorchperfError, match="needs a sequence"):
        check(graph_of(tiny, "vit"))
    with pytest.raises(TorchperfError, match="no attention goes along a sequence"):
        context_parallel(graph_of(tiny, "vit"), 2, kind="ring")


def test_attention_written_out(tiny: Tiny) -> None:
    graph = attention.apply(graph_of(tiny, "llama"), "unfused")
    with pytest.raises(TorchperfError) as caught:
        check(graph)
    assert "--attention flash" in (caught.value.hint or "")
    with pytest.raises(TorchperfError) as caught:
        context_parallel(graph, 2, kind="ring")
    assert "--attention flash" in (caught.value.hint or "")


@pytest.mark.parametrize("kind", ["ring", "ulysses"])
def test_sinks_are_split_with_their_heads(tiny: Tiny, kind: str) -> None:
    """A ring refuses them."""
    graph = graph_of(tiny, "llama", SEQ // 2)
    blocks = []
    for block in graph.blocks:
        ops = []
        for op in block.ops:
            if op.name in ATTENTION:
                sinks = replace(op.inputs[0], shape=(4,), strides=(1,))
                op = replace(op, operands=(*op.operands, "sinks"), inputs=(*op.inputs, sinks))
            ops.append(op)
        blocks.append(replace(block, ops=tuple(ops)))
    graph = replace(graph, blocks=tuple(blocks))
    if kind == "ring":
        with pytest.raises(TorchperfError, match="knows no sinks"):
            context_parallel(graph, 2, kind=kind)
    else:
        assert {op.operand("sinks").shape for op in attentions(context_parallel(graph, 2, kind=kind))} == {(2,)}
