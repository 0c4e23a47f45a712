"""Context parallelism: the ranks together compute the whole, and what they cost beside it."""

from __future__ import annotations

import importlib.util
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from torchperf.annotate import work, works
from torchperf.annotate.attention import ring_pairs, visible_pairs
from torchperf.fuse import fuse
from torchperf.graph.graph import Graph
from torchperf.graph.op import Op
from torchperf.partition.context_check import check
from torchperf.partition.context_parallel import context_parallel
from torchperf.partition.local import local_program
from torchperf.rewrite import recompute

SEQ, BATCH = 16, 2
Tiny = Callable[..., Any]
ATTENTION = ("torchperf.attention.default", "torchperf.attention_backward.default")


@pytest.fixture(scope="session")
def ranks_module() -> ModuleType:
    """All ranks at once on real numbers, see context_ranks.py."""
    spec = importlib.util.spec_from_file_location("context_ranks", Path(__file__).with_name("context_ranks.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def truth(tiny: Tiny, ranks_module: ModuleType) -> Callable[[str], Any]:
    """The whole program of a tiny model, run on numbers."""
    return cache(lambda model: ranks_module.Whole(tiny(model, seq=SEQ).factors.graph).run())


def graph_of(tiny: Tiny, model: str, seq: int = SEQ, **changes: int) -> Graph:
    graph: Graph = tiny(model, seq=seq, **changes).factors.graph
    return graph


def attentions(graph: Graph) -> list[Op]:
    return [op for op, _ in graph.ops() if op.name in ATTENTION]


def gradients(graph: Graph) -> set[int]:
    return {
        storage
        for segment in graph.segments
        for slot, storage in enumerate(segment.storages)
        if graph.blocks[segment.block].storages[slot].kind == "grad"
    }


@pytest.mark.parametrize(
    ("model", "kind", "ranks"),
    [
        *(("llama", kind, ranks) for kind in ("ring", "ulysses") for ranks in (2, 4)),  # 2 KV heads: 4 ranks share them
        *(("mixtral", kind, 2) for kind in ("ring", "ulysses")),
        *(("bert", kind, 4) for kind in ("ring", "ulysses")),
        ("deepseek_v3", "ring", 4), ("gpt2", "ulysses", 4),
    ],
)  # fmt: skip
def test_the_ranks_together_compute_the_whole(
    tiny: Tiny, truth: Callable[[str], Any], ranks_module: ModuleType, model: str, kind: str, ranks: int
) -> None:
    """Loss, logits at each rank's positions, and the gradient of every parameter summed over the ranks."""
    whole, local = truth(model), graph_of(tiny, model, SEQ // ranks)
    program = context_parallel(local, ranks, kind=kind)
    run = ranks_module.Ranks(program, local, whole, kind, ranks, SEQ).run()
    found = gradients(whole.graph)
    assert len(found) > 10
    for storage in found:
        total = sum(machine.storages[storage] for machine in run.machines)
        assert torch.allclose(total, whole.storages[storage], rtol=0, atol=1e-12)
    for storage in whole.graph.facts.outputs:
        true = whole.storages[storage]
        if true.numel() == 1:
            assert sum(m.storages[storage] for m in run.machines).item() == pytest.approx(true.item(), rel=1e-12)
            continue
        logits = true.view(BATCH, SEQ, -1)
        for own, machine in zip(run.own, run.machines, strict=True):
            assert torch.allclose(machine.storages[storage].view(BATCH, SEQ // ranks, -1), logits[:, own], atol=1e-12)
    if kind == "ring":
        pairs = [dict(work(op).dims)["pairs"] for op in attentions(program)]
        assert set(pairs) == set(run.pairs)


def test_the_checker_sees_chunks_on_the_wrong_ranks(
    tiny: Tiny, truth: Callable[[str], Any], ranks_module: ModuleType
) -> None:
    """A causal ring over contiguous chunks: the blocks that it leaves out are not those that the mask leaves out."""
    whole, local = truth("llama"), graph_of(tiny, "llama", SEQ // 2)
    program = context_parallel(local, 2, kind="ring")
    run = ranks_module.Ranks(program, local, whole, "ulysses", 2, SEQ).run()
    storage = min(gradients(whole.graph))
    total = sum(machine.storages[storage] for machine in run.machines)
    assert not torch.allclose(total, whole.storages[storage], rtol=0, atol=1e-6)


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
@pytest.mark.parametrize("chunk", [1, 2, 5])
def test_every_rank_of_a_causal_ring_has_the_same_pairs(ranks: int, chunk: int) -> None:
    own, seq = 2 * chunk, 2 * chunk * ranks
    for rank in range(ranks):
        queries = [c * chunk + i for c in (rank, 2 * ranks - 1 - rank) for i in range(chunk)]
        assert ring_pairs(own, own, ranks, True) == sum(q + 1 for q in queries)
    assert ranks * ring_pairs(own, own, ranks, True) == visible_pairs(seq, seq, True)
    assert ranks * ring_pairs(own, own, ranks, False) == visible_pairs(seq, seq)


@pytest.mark.parametrize("model", ["llama", "bert", "deepseek_v3"])
@pytest.mark.parametrize("kind", ["ring", "ulysses"])
@pytest.mark.parametrize("ranks", [2, 4])
def test_flops_over_the_ranks_are_those_of_the_whole(tiny: Tiny, model: str, kind: str, ranks: int) -> None:
    def flops(graph: Graph) -> dict[str, list[int]]:
        total: dict[str, list[int]] = {}
        for block, row, count in zip(graph.blocks, works(graph), graph.counts, strict=True):
            for op, w in zip(block.ops, row, strict=True):
                if w.kind in ("attention", "matmul"):
                    found = total.setdefault(f"{op.phase} {w.kind}", [0, 0, 0])
                    for i, n in enumerate((w.flops, w.flops_noncausal, w.flops_executed)):
                        found[i] += count * n
        return total

    program = context_parallel(graph_of(tiny, model, SEQ // ranks), ranks, kind=kind)
    assert {key: [ranks * n for n in row] for key, row in flops(program).items()} == flops(graph_of(tiny, model))


def collectives(graph: Graph) -> Counter[tuple[str, str, int]]:
    found: Counter[tuple[str, str, int]] = Counter()
    for op, count in graph.ops():
        w = work(op)
        if w.kind == "collective":
            assert (op.attr("axis"), op.attr("stride"), w.dim("ranks")) == ("cp", 2, op.attr("ranks"))
            found[op.phase, w.equation, w.dim("nbytes") * dict(w.dims).get("steps", 1)] += count
    return found


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_ring_sends_keys_and_values_to_its_neighbour(tiny: Tiny, ranks: int) -> None:
    """n-1 times in forward; in backward as often, and their gradients with them."""
    local = graph_of(tiny, "llama", SEQ // ranks)
    once = 2 * BATCH * 2 * (SEQ // ranks) * 8 * 2  # K and V of 2 heads of 8, bf16
    assert collectives(context_parallel(local, ranks, kind="ring", stride=2)) == {
        ("forward", "send_recv", (ranks - 1) * once): 2,
        ("backward", "send_recv", 2 * (ranks - 1) * once): 2,
    }
    program = context_parallel(local, ranks, kind="ring")
    steps = {op.phase: op.attr("steps") for op, _ in program.ops() if op.name == "torchperf.send_recv"}
    assert steps == {"forward": ranks - 1, "backward": ranks}
    for op in attentions(program):
        buffer = op.operand("received")
        assert buffer.nbytes == (4 if "backward" in op.name else 2) * once
        assert op.outputs[-1].nbytes == sum(v.nbytes for v in op.outputs[: 3 if "backward" in op.name else 2])


@pytest.mark.parametrize("ranks", [2, 4])
def test_ulysses_exchanges_each_tensor_once(tiny: Tiny, ranks: int) -> None:
    program = context_parallel(graph_of(tiny, "llama", SEQ // ranks), ranks, kind="ulysses", stride=2)
    heads = BATCH * (SEQ // ranks) * 8 * 2  # bytes of one head, bf16
    query, key = 4 * heads, max(2, ranks) * heads
    expected: Counter[tuple[str, str, int]] = Counter()
    for phase in ("forward", "backward"):
        for nbytes in (query, query, key, key):  # q and out, k and v; dOut and dQ, dK and dV
            expected[phase, "all_to_all", nbytes] += 2
    assert collectives(program) == expected
    for op in attentions(program):
        assert op.operand("query").shape == (BATCH, 4 // ranks, SEQ, 8)
        assert op.operand("key").shape == op.operand("value").shape == (BATCH, max(1, 2 // ranks), SEQ, 8)


@pytest.mark.parametrize("kind", ["ring", "ulysses"])
def test_backward_reads_what_forward_kept(tiny: Tiny, kind: str) -> None:
    """Of each call of attention: the same five storages, each written in forward and nowhere else."""
    program = context_parallel(graph_of(tiny, "llama", SEQ // 2), 2, kind=kind)
    kept: dict[str, set[tuple[int, ...]]] = {"forward": set(), "backward": set()}
    for segment in program.segments:
        for op in program.blocks[segment.block].ops:
            if op.name in ATTENTION:
                names = ("query", "key", "value", "out", "logsumexp")
                found = [op.find(name) for name in names]
                if op.phase == "forward":
                    found = [*found[:3], *op.outputs[:2]]
                kept[op.phase].add(tuple(segment.storages[v.slot] for v in found if v is not None))
    assert len(kept["forward"]) == 2
    assert kept["forward"] == kept["backward"]


@pytest.mark.parametrize("kind", ["ring", "ulysses"])
def test_the_program_passes_the_rooms_behind(tiny: Tiny, kind: str) -> None:
    program = context_parallel(graph_of(tiny, "llama", SEQ // 2), 2, kind=kind)
    again = recompute.apply(program, "full")
    assert sum(op.phase == "recompute" for op in attentions(again)) == 1
    assert all(w.known for row in works(again) for w in row)
    kernels = fuse(program, works(program))
    assert [op.attr("ring") for op in attentions(kernels)] == [op.attr("ring") for op in attentions(program)]
    assert collectives_of(kernels) == collectives_of(program)


def collectives_of(graph: Graph) -> Counter[str]:
    return Counter(op.name for op, count in graph.ops() for _ in range(count) if work(op).kind == "collective")


@pytest.mark.parametrize("sequence", [False, True])
@pytest.mark.parametrize("kind", ["ring", "ulysses"])
def test_after_tensor_parallelism(tiny: Tiny, megatron: Callable[..., Any], kind: str, sequence: bool) -> None:
    """Heads are split twice, and positions outside attention too where the sequence is."""
    split = local_program(megatron(tiny("llama", seq=SEQ // 2), 2, sequence=sequence))
    check(split)
    program = context_parallel(split, 2, kind=kind, stride=2)
    ops = attentions(program)
    assert len(ops) == 2
    for op in ops:
        assert op.operand("query").shape[1:3] == ((2, SEQ // 2) if kind == "ring" else (1, SEQ))
    axes = Counter(op.attr("axis") for op, _ in program.ops() if work(op).kind == "collective")
    assert axes["cp"] == (2 if kind == "ring" else 8)
    assert axes["tp"]


@pytest.mark.parametrize(
    "model", ["llama", "gpt2", "bert", "mixtral", "qwen3_moe", "deepseek_v3", "gemma3_text", "phi3"]
)
def test_nothing_but_attention_mixes_positions(tiny: Tiny, model: str) -> None:
    check(graph_of(tiny, model))


def test_one_rank_changes_nothing(tiny: Tiny) -> None:
    graph = graph_of(tiny, "llama")
    assert context_parallel(graph, 1, kind="ring") is graph
