"""Laws of memory: the parts are the whole, and recompute keeps less."""

from __future__ import annotations

import pytest

import torchperf
from torchperf.graph.plan import Plan
from torchperf.partition.stages import chunks_of
from torchperf.schedule import memory

MODELS = ("llama", "gpt2")
HOWS = (
    {},
    {"recompute": "full"},
    {"attention": "unfused"},
    {"runtime": "compile"},
    {"precision": "fp32"},
    {"runtime": "compile", "recompute": "full"},
)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("how", HOWS, ids=str)
def test_peak_is_the_sum_of_its_parts(program, model: str, how: dict[str, str]) -> None:
    """And is what a walk over every op finds: bytes of the storages alive then."""
    graph, works = program(model, **how)
    top = memory.peak(graph, works)
    assert top.nbytes == top.activations + top.logits_loss + top.temporary
    lives = memory.lives(graph, works).values()
    alive_at = {
        (s, i): sum(life.nbytes for life in lives if life.birth <= (s, i) <= life.death)
        for s, segment in enumerate(graph.segments)
        for i in range(len(graph.blocks[segment.block].ops))
    }
    assert top.nbytes == max(alive_at.values()) == alive_at[top.at]


@pytest.mark.parametrize("model", MODELS)
def test_device_memory_is_the_sum_of_its_parts(shallow, model: str) -> None:
    m = torchperf.estimate(shallow(model), gpu="t4", precision="fp16-mixed", seq_len=256).memory
    states = m.parameters + m.buffers + m.gradients + m.optimizer
    assert m.peak == states + m.activations + m.logits_loss + m.temporary
    assert m.device == m.peak + m.reserve
    assert m.margin == 1 - m.device / m.usable


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("runtime", ["eager", "compile"])
@pytest.mark.parametrize("attention", ["flash", "unfused"])
@pytest.mark.parametrize(("batch", "seq"), [(1, 64), (2, 256), (3, 1024)])
def test_full_recompute_keeps_no_more(program, model: str, runtime: str, attention: str, batch: int, seq: int) -> None:
    """Neither what is saved nor the peak grows; backward's FLOPs stay and forward's layers run twice."""
    how = {"runtime": runtime, "attention": attention, "batch": batch, "seq": seq}
    (plain, works), (again, works_again) = program(model, **how), program(model, recompute="full", **how)

    def kept(graph, works) -> int:
        return sum(life.nbytes for life in memory.saved(graph, works).values())

    assert kept(again, works_again) < kept(plain, works)
    assert memory.peak(again, works_again).nbytes <= memory.peak(plain, works).nbytes
    phases = [block.phase for block in again.blocks]
    assert phases.count("recompute") > 0
    assert phases.count("backward") == [block.phase for block in plain.blocks].count("backward")


@pytest.mark.parametrize("model", MODELS)
def test_activations_grow_with_the_batch(program, model: str) -> None:
    """Saved bytes of a layer are linear in the batch."""
    sums = []
    for batch in (2, 3, 4):
        graph, works = program(model, batch=batch)
        sums.append(sum(life.nbytes for life in memory.saved(graph, works).values()))
    assert sums[2] - sums[1] == sums[1] - sums[0] > 0


def test_the_gradient_of_a_tied_parameter_is_on_the_stage_that_makes_it(program) -> None:
    """Head and embedding at both ends of a pipeline: each holds the gradient of its own use, and not the other's."""
    graph, works = program("gpt2", batch=1, seq=24)
    table = next(p for p in graph.facts.parameters if len(p.names) > 1)
    size = 2 * table.numel
    for chunk in chunks_of(graph, Plan(pp=2).resolved(2)):
        own = [life for life in memory.lives(chunk.graph, works).values() if life.nbytes == size]
        assert len([life for life in own if life.part == "temporary"]) == 1


@pytest.mark.parametrize("model", MODELS)
def test_every_storage_lives_forward_in_time(program, model: str) -> None:
    graph, works = program(model, recompute="full")
    for life in memory.lives(graph, works).values():
        assert life.birth <= life.death
        assert life.nbytes >= 0
        assert life.part in ("activations", "logits_loss", "temporary")
