"""The streams of one micro-batch: one stream alone, collectives beside and in line, a host that is late."""

from __future__ import annotations

from dataclasses import replace

import pytest

from torchperf.annotate import works
from torchperf.graph.graph import Block, Facts, Graph, Segment
from torchperf.graph.op import Op
from torchperf.graph.price import Price
from torchperf.graph.tensor import Storage, Value
from torchperf.hardware import load_runtime, load_system
from torchperf.partition.fully_sharded import Group, Sharding, fully_sharded
from torchperf.price import Pricer
from torchperf.schedule.streams import micro_batch
from torchperf.schedule.timeline import step_time


def runtime(launch: float = 0.0, slowdown: float = 0.0, overlap: tuple[str, ...] = ("tp", "weights", "gradients")):
    base = load_runtime("compile")
    slow = replace(base.training.overlap_slowdown, value=slowdown)
    training = replace(base.training, overlap=overlap, overlap_slowdown=slow)
    return replace(base, launch=replace(base.launch, value=launch), training=training)


def value(slot: int) -> Value:
    return Value(slot, "bf16", (8,), (1,))


def op(name: str, reads: tuple[int, ...], writes: int, **attrs: object) -> Op:
    inputs = tuple(map(value, reads))
    return Op(name, "forward", "", ("self",) * len(reads), inputs, (value(writes),), tuple(attrs.items()))


def reduce(slot: int, **attrs: object) -> Op:
    return op("torchperf.all_reduce", (slot,), slot, axis="tp", ranks=8, role="activation", **attrs)


def graph(*ops: Op, calls: int = 1) -> Graph:
    slots = 1 + max(v.slot for o in ops for v in (*o.inputs, *o.outputs))
    block = Block("", "forward", tuple(Storage(16, "activation") for _ in range(slots)), ops)
    segments = tuple(Segment(0, "", tuple(range(i * slots, (i + 1) * slots))) for i in range(calls))
    return Graph(Facts("hand", "Hand", "forward"), (block,), segments, ())


def prices(*seconds: float) -> tuple[tuple[Price, ...], ...]:
    return (tuple(Price(s, "compute") for s in seconds),)


def test_a_collective_beside_compute_holds_back_only_its_readers() -> None:
    """reduce(0) takes 5, beside a kernel of 3; the reader waits 2."""
    program = graph(op("a", (1,), 0), reduce(0), op("b", (2,), 3), op("c", (0,), 4))
    spent = micro_batch(program, prices(1.0, 5.0, 3.0, 1.0), runtime())["forward"]
    assert spent.elapsed == pytest.approx(1 + 5 + 1)
    assert spent.exposed == {"tp": pytest.approx(2.0)}
    assert spent.hidden == {"tp": pytest.approx(3.0)}
    assert spent.compute == pytest.approx(5.0)


def test_what_crosses_a_block_keeps_its_axis() -> None:
    """reduce(0) takes 5 at the end of a block; the next block reads it after a kernel of 3."""
    first = Block("", "forward", (Storage(16, "activation"),) * 2, (op("a", (1,), 0), reduce(0)))
    then = Block("", "forward", (Storage(16, "activation"),) * 5, (op("b", (2,), 3), op("c", (0,), 4)))
    segments = (Segment(0, "", (0, 1)), Segment(1, "", (0, 1, 2, 3, 4)))
    program = Graph(Facts("hand", "Hand", "forward"), (first, then), segments, ())
    spent = micro_batch(program, (*prices(1.0, 5.0), *prices(3.0, 1.0)), runtime(slowdown=0.1))["forward"]
    assert spent.exposed == {"tp": pytest.approx(2.0)}
    assert spent.hidden == {"tp": pytest.approx(3.0)}
    assert spent.slowed == pytest.approx(0.1 * 3.0)
    assert spent.elapsed == pytest.approx(1 + 5 + 1 + 0.3)


def test_a_stream_runs_one_collective_at_a_time() -> None:
    """A gather in line waits for the reduce of the same ranks that runs beside compute."""
    gather = op("torchperf.all_gather", (2,), 3, axis="dp", ranks=8, role="fsdp")
    scatter = op("torchperf.reduce_scatter", (0,), 4, axis="dp", ranks=8, role="fsdp")
    program = graph(op("a", (1,), 0), scatter, op("b", (2,), 2), gather)
    spent = micro_batch(program, prices(1.0, 5.0, 3.0, 2.0), runtime(overlap=("gradients",)))["forward"]
    assert spent.exposed == {"dp": pytest.approx(2.0 + 2.0)}
    assert spent.hidden == {"dp": pytest.approx(3.0)}
    assert spent.elapsed == pytest.approx(1 + 5 + 2)


def test_in_line_where_the_runtime_does_not_overlap() -> None:
    program = graph(op("a", (1,), 0), reduce(0), op("b", (2,), 3), op("c", (0,), 4))
    spent = micro_batch(program, prices(1.0, 5.0, 3.0, 1.0), runtime(overlap=()))["forward"]
    assert spent.elapsed == pytest.approx(10.0)
    assert spent.exposed == {"tp": pytest.approx(5.0)}


def test_what_is_hidden_slows_compute() -> None:
    program = graph(op("a", (1,), 0), reduce(0), op("b", (2,), 3))
    spent = micro_batch(program, prices(1.0, 2.0, 3.0), runtime(slowdown=0.1))["forward"]
    assert spent.elapsed == pytest.approx(4.0 + 0.2)


def test_a_ring_runs_beside_its_attention_but_for_the_last_step() -> None:
    """Four steps of 1 second; keys arrive after 2, or after 6: then a step is left."""
    ring = op("torchperf.send_recv", (0,), 1, axis="cp", ranks=4, role="ring")
    program = graph(op("a", (2,), 0), ring, op("torchperf.attention.default", (0, 1), 3, ring=4))
    fast = micro_batch(program, prices(1.0, 2.0, 4.0), runtime())["forward"]
    assert fast.elapsed == pytest.approx(5.0)
    slow = micro_batch(program, prices(1.0, 6.0, 4.0), runtime())["forward"]
    assert slow.elapsed == pytest.approx(1 + 6 + 1)
    assert slow.exposed == {"cp": pytest.approx(3.0)}


def test_the_last_collective_is_waited_for() -> None:
    program = graph(op("a", (1,), 0), reduce(0))
    spent = micro_batch(program, prices(1.0, 5.0), runtime())["forward"]
    assert spent.elapsed == pytest.approx(6.0)
    assert spent.exposed == {"tp": pytest.approx(5.0)}


@pytest.mark.parametrize("launch", [0.0, 1e-6, 1e-5, 1e-3])
@pytest.mark.parametrize("how", [{}, {"recompute": "full"}, {"runtime": "compile"}], ids=str)
def test_one_stream_is_the_closed_form(program, launch: float, how: dict[str, str]) -> None:
    """Without collectives the walk of the streams ends when the closed form of one stream says."""
    lowered, done = program("llama", **how)
    pricer = Pricer(load_system("dgx-h100"), load_runtime("eager"))
    costs = tuple(
        tuple(pricer(o, w) for o, w in zip(b.ops, row, strict=True))
        for b, row in zip(lowered.blocks, done, strict=True)
    )
    walked = micro_batch(lowered, costs, runtime(launch))
    seconds = [[p.seconds for p in row] for row in costs]
    closed = step_time(seconds, [s.block for s in lowered.segments], launch)
    assert sum(s.elapsed for s in walked.values()) == pytest.approx(closed.step, rel=1e-9)


def test_a_slower_link_never_helps(captured) -> None:
    """FSDP of Llama-3.1-8B: every collective 1, 2, 4, ... times as slow."""
    whole = captured("llama-3.1-8b").bind(batch=1, seq=2048)
    program = fully_sharded(whole, Sharding(Group(8, 1), Group(8, 1)))
    pricer, done = Pricer(load_system("dgx-h100"), load_runtime("compile")), works(program)
    known = 0.0
    for factor in (0.5, 1, 2, 4, 8, 16):
        costs = tuple(
            tuple(
                replace(p, seconds=p.seconds * factor) if w.kind == "collective" else p
                for p, w in ((pricer(o, w), w) for o, w in zip(b.ops, row, strict=True))
            )
            for b, row in zip(program.blocks, done, strict=True)
        )
        elapsed = sum(s.elapsed for s in micro_batch(program, costs, runtime(launch=2e-6)).values())
        assert elapsed >= known
        known = elapsed
