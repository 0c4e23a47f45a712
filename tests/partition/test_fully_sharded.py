"""FSDP: what is gathered and scattered, how much of it, and how long it stays."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from torchperf.annotate import works
from torchperf.graph.graph import Graph
from torchperf.partition.fully_sharded import Group, Sharding, fully_sharded
from torchperf.rewrite import recompute
from torchperf.rewrite.low_precision import quantise
from torchperf.rewrite.precision import precision
from torchperf.schedule import memory

LAYER = 4 * 4096 * 1024 + 2 * 4096 * 4096 + 3 * 4096 * 14336 - 2 * 4096 * 1024 + 2 * 4096
ROOT = 2 * 128256 * 4096 + 4096
FOUR = Sharding(Group(4, 1), Group(4, 1))


@pytest.fixture(scope="module")
def graph(captured) -> Graph:
    return captured("llama-3.1-8b").bind(batch=1, seq=512)


def collectives(program: Graph) -> Counter[tuple[str, str, int]]:
    found: Counter[tuple[str, str, int]] = Counter()
    for count, block in zip(program.counts, program.blocks, strict=True):
        for op in block.ops:
            if op.attr("role") == "fsdp":
                size = max(op.inputs[0].nbytes, op.outputs[0].nbytes)
                found[op.name.removeprefix("torchperf."), block.phase, size] += count
    return found


def test_gather_gather_scatter_a_layer(graph) -> None:
    """Two gathers a layer; the root once; reduction in fp32."""
    assert LAYER == 218_112_000
    assert collectives(fully_sharded(graph, FOUR)) == {
        ("all_gather", "forward", 2 * LAYER): 32,
        ("all_gather", "forward", 2 * ROOT): 1,
        ("all_gather", "backward", 2 * LAYER): 32,
        ("reduce_scatter", "backward", 4 * LAYER): 32,
        ("reduce_scatter", "backward", 4 * ROOT): 1,
    }


def test_without_reshard_there_is_one_gather_a_layer(graph) -> None:
    found = collectives(fully_sharded(graph, replace(FOUR, reshard=False, reduce="bf16")))
    assert found == {
        ("all_gather", "forward", 2 * LAYER): 32,
        ("all_gather", "forward", 2 * ROOT): 1,
        ("reduce_scatter", "backward", 2 * LAYER): 32,
        ("reduce_scatter", "backward", 2 * ROOT): 1,
    }


def test_weights_of_low_precision_products_are_gathered_narrow(graph) -> None:
    """Norms, embedding and head as they are; no weight of a graph without such products."""
    low = quantise(graph, precision("fp8-tensorwise"), "Hopper", sharded=True)
    found = collectives(fully_sharded(low, replace(FOUR, gather=8)))
    norms = 2 * 4096
    assert found["all_gather", "forward", LAYER + norms] == 32
    assert found["all_gather", "forward", 2 * ROOT] == 1
    assert collectives(fully_sharded(graph, replace(FOUR, gather=8))) == collectives(fully_sharded(graph, FOUR))


def test_recompute_shares_the_gather_of_backward(graph) -> None:
    found = collectives(fully_sharded(recompute.apply(graph, "full"), FOUR))
    assert found["all_gather", "recompute", 2 * LAYER] == 32
    assert found["all_gather", "backward", 2 * LAYER] == 0


def test_two_layers_are_gathered_at_once_and_no_more(graph) -> None:
    """The layer at work and the one that is fetched, beside the root."""
    program = fully_sharded(graph, FOUR)
    kept = memory.lives(program, works(program))
    gathered = [life for life in kept.values() if life.part == "gathered"]
    phases = [program.blocks[segment.block].phase for segment in program.segments]
    forward = [s for s, segment in enumerate(program.segments) if segment.module and phases[s] == "forward"]
    most = max(sum(life.nbytes for life in gathered if life.birth[0] <= s <= life.death[0]) for s in forward[3:])
    assert most == 2 * ROOT + 2 * 2 * LAYER
    again = fully_sharded(graph, replace(FOUR, reshard=False))
    lives = [life for life in memory.lives(again, works(again)).values() if life.part == "gathered"]
    end = forward[-1]
    assert sum(life.nbytes for life in lives if life.birth[0] <= end <= life.death[0]) >= 2 * (ROOT + 32 * LAYER)


def test_gradients_do_not_outlive_their_scatter(graph) -> None:
    """A layer's own gradients and its buffer, and the buffer of the layer before: never a second layer's gradients."""
    program = fully_sharded(graph, FOUR)
    lives = memory.lives(program, works(program))
    born_in = {i: program.blocks[program.segments[life.birth[0]].block] for i, life in lives.items()}
    grads = [
        life for i, life in lives.items()
        if life.part == "gathered" and born_in[i].phase == "backward" and born_in[i].module and len(born_in[i].ops) > 9
    ]  # fmt: skip
    last = max(life.birth[0] for life in grads)
    most = max(sum(g.nbytes for g in grads if g.birth[0] <= s <= g.death[0]) for s in range(last + 2))
    assert most == 2 * LAYER


def test_experts_have_their_own_group(captured) -> None:
    graph = captured("mixtral-8x7b").bind(batch=1, seq=512)
    names = frozenset(p.names[0] for p in graph.facts.parameters if ".experts." in p.names[0])
    program = fully_sharded(graph, Sharding(Group(8, 1), Group(2, 4), names))
    seen = {
        (op.attr("ranks"), op.attr("stride"))
        for op, _ in program.ops() if op.name == "torchperf.all_gather" and op.module
    }  # fmt: skip
    assert seen == {(8, 1), (2, 4)}
    shards = sum(
        count * block.storages[0].nbytes
        for count, block in zip(program.counts, program.blocks, strict=True)
        if block.phase == "forward" and block.ops and block.ops[0].attr("role") == "fsdp" and not block.module
    )
    assert shards == 2 * (2 * 32000 * 4096 + 4096) // 8
