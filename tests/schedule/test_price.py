"""Laws of prices: better hardware is never slower, and no run beats the roofline."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

import torchperf
from torchperf.graph.graph import Graph
from torchperf.graph.system import Accelerator, System
from torchperf.graph.work import Works
from torchperf.hardware import accelerator_names, load_accelerator, load_runtime, system_for
from torchperf.pipeline import annotated, lower
from torchperf.price import Pricer

Change = Callable[[Accelerator, float], Accelerator]


def faster_peaks(device: Accelerator, by: float) -> Accelerator:
    peaks = tuple(replace(p, flops_per_s=replace(p.flops_per_s, value=p.flops_per_s.value * by)) for p in device.peaks)
    return replace(device, peaks=peaks)


def more_bandwidth(device: Accelerator, by: float) -> Accelerator:
    width = device.memory.bandwidth
    return replace(device, memory=replace(device.memory, bandwidth=replace(width, value=width.value * by)))


def shorter_floor(device: Accelerator, by: float) -> Accelerator:
    return replace(device, kernel_floor=replace(device.kernel_floor, value=device.kernel_floor.value / by))


def prices(program: tuple[Graph, Works], device: Accelerator) -> list[float]:
    graph, works = program
    system: System = system_for(device, 1)
    pricer = Pricer(system, load_runtime("eager"))
    return [
        pricer(op, work).seconds
        for block, row in zip(graph.blocks, works, strict=True)
        for op, work in zip(block.ops, row, strict=True)
    ]


@pytest.mark.parametrize("change", [faster_peaks, more_bandwidth, shorter_floor])
@pytest.mark.parametrize("by", [1.01, 2.0, 10.0])
def test_a_price_falls_or_stays(captured, change: Change, by: float) -> None:
    """Each op of a training step of GPT-2 by itself; some are bound by compute, some by memory, some by launch."""
    device = load_accelerator("h100-sxm-80gb")
    graph = lower(
        captured("gpt2").bind(batch=4, seq=1024), "bf16-mixed", "adamw", "none", "auto", load_runtime("eager")
    )
    step = graph, annotated(graph)
    before, after = prices(step, device), prices(step, change(device, by))
    assert all(b <= a for a, b in zip(before, after, strict=True))
    assert sum(after) < sum(before)


@pytest.mark.parametrize("name", accelerator_names())
@pytest.mark.parametrize("how", [{}, {"recompute": "full"}, {"runtime": "compile"}, {"attention": "unfused"}], ids=str)
def test_never_below_the_roofline(shallow, name: str, how: dict[str, str]) -> None:
    """Full peaks, every byte once, no floors: on every device of the database."""
    device = load_accelerator(name)
    precision = "bf16-mixed" if "bf16" in device.dtypes("matrix") else "fp16-mixed"
    answer = torchperf.estimate(shallow("llama"), gpu=name, precision=precision, seq_len=256, **how)
    assert 0 < answer.roofline_time_s <= answer.device_time_s <= answer.step_time_s
    assert answer.step_time_s <= answer.device_time_s + answer.host_time_s
    assert sum(seconds for _, seconds in answer.phase_time_s) == pytest.approx(answer.step_time_s)
    for shares in (answer.by_kind, answer.by_module, answer.by_bound):
        assert sum(share.seconds for share in shares) == pytest.approx(answer.device_time_s)
    assert all(0 <= row.value <= 1 for row in answer.mfu)


def test_equal_work_has_equal_price(program) -> None:
    graph, works = program("llama")
    pricer = Pricer(system_for(load_accelerator("t4"), 1), load_runtime("eager"))
    seen: dict[object, object] = {}
    for block, row in zip(graph.blocks, works, strict=True):
        for op, work in zip(block.ops, row, strict=True):
            if work.engine == "none" or "bf16" not in work.dtype:
                assert seen.setdefault(work, pricer(op, work)) == pricer(op, work)


def test_a_power_cap_slows_what_computes(captured) -> None:
    """A100 at 330 W: an input, not a device. Memory-bound work stays as it is; at the TDP nothing changes."""
    answers = [
        torchperf.estimate(captured("gpt2"), gpu="a100-sxm-80gb", micro_batch=8, power_cap=cap)
        for cap in (None, 400.0, 330.0, 200.0)
    ]
    times = [answer.step_time_s for answer in answers]
    assert times[0] == times[1] < times[2] < times[3] < 2 * times[0]
    assert any("capped at 330 W" in line for line in answers[2].assumptions)
