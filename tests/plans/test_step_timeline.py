"""Collectives of a step: what is exposed and hidden adds up to their prices, and the trace shows the same seconds."""

from __future__ import annotations

import itertools
from collections import defaultdict
from dataclasses import dataclass, field

import pytest

from torchperf import pipeline
from torchperf.graph.timeline import COMPUTE, Span
from torchperf.schedule.stream_kernels import Kernel, kernels
from torchperf.step import Step
from torchperf.step_timeline import timeline

LLAMA, MIXTRAL = "llama-3.1-8b", "mixtral-8x7b"
PLANS = [
    (LLAMA, "megatron-core", {"tp": 4}),
    (LLAMA, "megatron-core", {"tp": 4, "sequence_parallel": True, "pp": 2, "global_batch": 4}),
    (LLAMA, "fsdp-eager", {"dp": 8, "zero_stage": 3, "global_batch": 16, "recompute": "full"}),
    (LLAMA, "fsdp-compile", {"dp": 8, "dp_shard": 4, "zero_stage": 3, "tp": 2}),
    (LLAMA, "megatron-core", {"cp": 4, "dp": 2, "zero_stage": 1}),
    (LLAMA, "eager", {"dp": 4, "zero_stage": 2, "global_batch": 16}),
    (LLAMA, "eager", {"dp": 4, "zero_stage": 0}),
    (LLAMA, "megatron-core", {"pp": 4, "virtual_stages": 2, "global_batch": 8, "tp": 2, "dp": 2, "zero_stage": 1}),
    (LLAMA, "megatron-core", {"pp": 2, "schedule": "zb-h1", "global_batch": 8, "tp": 2, "sequence_parallel": True}),
    (MIXTRAL, "megatron-core", {"ep": 4, "dp": 4, "tp": 2, "pp": 2, "sequence_parallel": True, "global_batch": 8}),
]


@pytest.fixture(scope="module", params=PLANS, ids=str)
def priced(request, captured):
    model, runtime, plan = request.param
    given = {"gpu": "h100-sxm-80gb", "seq_len": 2048, "attention": "flash", "suggest": False}
    return pipeline.estimated(captured(model), runtime=runtime, **given, **plan)


def collectives(step: Step) -> dict[str, float]:
    """Seconds by axis of those that join replicas or split layers, on the average device; of a step, launches apart."""
    found: dict[str, float] = defaultdict(float)
    for count, op, _, price in step.rows:
        if op.attr("ranks") is not None:
            found[op.attr("axis")] += count * price.seconds
    for rank in step.ranks:
        for op, _, price in rank.ops:
            if op.attr("ranks") is not None and price.seconds:
                found[op.attr("axis")] += step.runtime.launch.value / step.plan.pp
    found.pop("pp", None)  # transfers are no ops of the program
    return {axis: seconds for axis, seconds in found.items() if seconds}


def test_exposed_and_hidden_of_an_axis_are_the_seconds_of_its_collectives(priced) -> None:
    answer, step = priced
    told = {c.axis: c.exposed + c.hidden for c in answer.communication if c.axis != "pp"}
    assert told == pytest.approx(collectives(step), rel=1e-9)
    assert all(c.exposed >= 0 and c.hidden >= 0 for c in answer.communication)
    assert ("dp" in told) == (step.plan.dp * step.plan.cp > 1)


def test_of_every_chunk_too(priced) -> None:
    _, step = priced
    for cost in step.costs:
        due: dict[str, float] = defaultdict(float)
        for count, block, prices in zip(cost.graph.counts, cost.graph.blocks, cost.prices, strict=True):
            for op, price in zip(block.ops, prices, strict=True):
                if op.attr("ranks") is not None and count * price.seconds:
                    due[op.attr("axis")] += count * price.seconds
        told: dict[str, float] = defaultdict(float)
        for spent in cost.spent.values():
            assert all(seconds >= 0 for seconds in (*spent.exposed.values(), *spent.hidden.values()))
            for axis, seconds in (*spent.exposed.items(), *spent.hidden.items()):
                told[axis] += seconds
        assert dict(told) == pytest.approx(dict(due), rel=1e-9)


@dataclass
class Twin:
    """The streams of one micro-batch kernel by kernel, in absolute time, storage by storage; no block is known."""

    launch: float
    slowdown: float
    host: float = 0.0
    now: float = 0.0
    counted: float = 0.0
    busy: list[tuple[str, float, float]] = field(default_factory=list)
    waits: list[tuple[str, float, float]] = field(default_factory=list)
    due: dict[int, tuple[float, str, int, float]] = field(default_factory=dict)

    def seconds(self, axis: str, until: float) -> tuple[float, float]:
        """Exposed and hidden until then."""
        ran = [(a, min(b, until)) for x, a, b in self.busy if x == axis and a < until]
        idle = [(a, b) for x, a, b in self.waits if x == axis]
        exposed = sum(max(0.0, min(b, d) - max(a, c)) for a, b in ran for c, d in idle)
        return exposed, sum(b - a for a, b in ran) - exposed

    def free(self, axis: str) -> float:
        return max((b for x, _, b in self.busy if x == axis), default=0.0)

    def wait(self, axis: str, until: float) -> None:
        if until > self.now:
            self.waits.append((axis, self.now, until))
            self.now = until

    def block(self, row: tuple[Kernel, ...], storages: tuple[int, ...]) -> None:
        begin, made, product = self.now, dict[int, float](), dict[int, float]()
        for k in row:
            self.host += self.launch
            reads, writes = [storages[s] for s in k.reads], [storages[s] for s in k.writes]
            late = sorted(self.due[s] for s in reads if s in self.due)
            if k.axis and k.overlaps:
                ready = max([made.get(s, begin) for s in reads], default=begin)
                first = max(self.host, begin, self.free(k.axis), *(d[0] for d in late), 0.0)
                maker = max([product.get(s, 0.0) for s in reads], default=0.0)
                if k.slices and maker:
                    end = max(max(first, ready - maker * (1 - 1 / k.slices)) + k.seconds, ready + k.seconds / k.slices)
                else:
                    end = max(first, ready) + k.seconds
                self.busy.append((k.axis, end - k.seconds, end))
                if k.axis != "ep":
                    self.due.update(dict.fromkeys(writes, (end, k.axis, k.slices, k.seconds)))
                continue
            self.now = max(self.now, self.host)
            if k.axis:
                self.wait(k.axis, self.free(k.axis))
            late = [d for d in late if d[0] > self.now]
            end, axis, slices, took = late[-1] if late else (0.0, "", 0, 0.0)
            if k.cast and slices:
                self.due.update(dict.fromkeys(writes, (end + k.seconds / slices, axis, slices, took)))
                self.now += k.seconds
                continue
            steps = k.ring or (slices if k.product else 0)
            if steps and not k.ring:
                self.wait(axis, end - took * (1 - 1 / steps))
            for d in late if not steps else ():
                self.wait(d[1], d[0])
            if k.axis:
                self.busy.append((k.axis, self.now, self.now + k.seconds))
                self.wait(k.axis, self.now + k.seconds)
            else:
                self.now += k.seconds
            held = end + k.seconds / steps - self.now if late and steps else 0.0
            if held > 0:
                self.waits.append((axis, end - held, end))
                self.now += held
            for s in writes:
                made[s], product[s] = self.now, k.seconds if k.product else 0.0
                self.due.pop(s, None)
        hidden = sum(self.seconds(axis, self.now)[1] for axis in {x for x, _, _ in self.busy})
        self.now += self.slowdown * (hidden - self.counted)
        self.counted = hidden


def test_a_block_known_again_is_what_its_kernels_say_one_by_one(priced) -> None:
    _, step = priced
    training = step.runtime.training
    pace = training.slower(step.system.accelerator.architecture)
    cost = step.costs[-1]
    twin = Twin(step.runtime.launch.value, training.overlap_slowdown.value)
    rows = [
        kernels(block, prices, frozenset(training.overlap), pace)
        for block, prices in zip(cost.graph.blocks, cost.prices, strict=True)
    ]
    for segment in cost.graph.segments:
        twin.block(rows[segment.block], segment.storages)
    axes = {axis for axis, _, _ in twin.busy}
    end = twin.now
    for _ in range(50):  # the last collectives: compute ends with them or after
        twin.now = end + twin.slowdown * (sum(twin.seconds(axis, twin.now)[1] for axis in axes) - twin.counted)
    twin.waits += [(axis, twin.now, twin.free(axis)) for axis in axes]
    twin.now = max([twin.now, *map(twin.free, axes)])
    assert sum(spent.elapsed for spent in cost.spent.values()) == pytest.approx(twin.now, rel=1e-9)
    for axis in axes:
        told = [sum(getattr(s, how).get(axis, 0.0) for s in cost.spent.values()) for how in ("exposed", "hidden")]
        assert told == pytest.approx(list(twin.seconds(axis, float("inf"))), rel=1e-6, abs=1e-9)


def test_compute_slowed_is_its_share_of_what_is_hidden(priced) -> None:
    answer, step = priced
    hidden = sum(c.hidden for c in answer.communication if c.axis != "pp")
    share = step.runtime.training.overlap_slowdown.value
    assert answer.slowed_s == pytest.approx(share * hidden, rel=1e-6, abs=1e-9)


def streams(spans: tuple[Span, ...]) -> dict[tuple[int, str], list[tuple[float, float]]]:
    found: dict[tuple[int, str], list[tuple[float, float]]] = defaultdict(list)
    for span in spans:
        found[span.rank, span.stream].append((span.start, span.end))
    return {key: sorted(own) for key, own in found.items()}


@pytest.mark.parametrize("detail", [10**9, 0], ids=["whole", "folded"])
def test_streams_of_the_trace_do_not_overlap_and_end_with_the_step(priced, detail: int) -> None:
    _, step = priced
    drawn = timeline(step, detail)
    assert drawn.seconds == pytest.approx(step.seconds, rel=1e-9)
    for key, spans in streams(drawn.spans).items():
        assert all(a[1] <= b[0] + 1e-9 * step.seconds for a, b in itertools.pairwise(spans)), key
    assert bool(drawn.note) == (detail == 0)


def test_the_trace_shows_the_seconds_of_every_collective(priced) -> None:
    answer, step = priced
    total: dict[str, float] = defaultdict(float)
    for span in timeline(step, 10**9).spans:
        axis = span.stream.split()[0]
        if span.stream != COMPUTE and axis not in ("to", "pp"):
            total[axis] += span.seconds / step.plan.pp
    assert dict(total) == pytest.approx(
        {c.axis: c.exposed + c.hidden for c in answer.communication if c.axis != "pp"}, rel=1e-6
    )


def test_collectives_of_a_block_lie_inside_it(priced) -> None:
    _, step = priced
    drawn = timeline(step, 10**9).spans
    actions = {(s.rank, s.kind, s.micro_batch, s.chunk): s for s in drawn if s.stream == COMPUTE and s.chunk >= 0}
    inside = [s for s in drawn if s.stream in ("tp", "cp", "ep", "dp")]
    for span in inside:
        own = [actions.get((span.rank, kind, span.micro_batch, span.chunk)) for kind in ("F", "B", "W", "BW")]
        assert any(a and a.start - 1e-9 <= span.start and span.end <= a.end + 1e-9 for a in own)


def test_zero_2_scatters_each_micro_batch_behind_its_own_backward(captured) -> None:
    """Four micro-batches hide four times what one does, and the trace has it in every backward."""
    given = {"gpu": "h100-sxm-80gb", "seq_len": 2048, "runtime": "eager", "dp": 4, "zero_stage": 2, "suggest": False}
    one, four = (pipeline.estimated(captured(LLAMA), **given, global_batch=4 * n) for n in (1, 4))
    gathered = sum(c.end - max(c.start, 0.0) for c in one[1].ranks[0].calls if c.when == "weights" and c.end > 0)
    hidden = one[1].ranks[0].hidden - gathered
    assert four[1].ranks[0].hidden - gathered == pytest.approx(4 * hidden, rel=1e-2)
    assert four[1].ranks[0].exposed == pytest.approx(4 * one[1].ranks[0].exposed, rel=1e-2)
    spans = timeline(four[1]).spans
    backward = {s.micro_batch: s for s in spans if s.kind == "BW"}
    assert len(backward) == 4
    for j, action in backward.items():
        own = [s for s in spans if s.stream == "dp gradients" and s.micro_batch == j]
        beside = sum(s.seconds for s in own if s.start >= action.start and s.end <= action.end + 1e-9)
        assert beside == pytest.approx(hidden, rel=1e-2)
