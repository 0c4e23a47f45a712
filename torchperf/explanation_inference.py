"""A priced inference -> how first token, time per token, latency, cache and memory come about."""

from __future__ import annotations

from dataclasses import dataclass

from .explanation_constants import constants
from .explanation_kernels import kernels
from .graph.explanation import Explanation, Line, filled, summed
from .graph.inference import CacheRow, Request, Served, ServingMemory
from .inference_cost import StageCost, StepCost
from .inference_planner import InferencePlanner


@dataclass(frozen=True, slots=True)
class Told:
    """What an estimate of inference tells, for its explanation. `prefill` and `decode` are the passes behind it."""

    request: Request
    served: Served
    memory: ServingMemory
    cache: tuple[CacheRow, ...]
    prefill: StepCost
    decode: StepCost


def explain(planner: InferencePlanner, told: Told) -> Explanation:
    """First token and time per token by their passes, latency, the cache of a request and the memory of a GPU."""
    s = told.served
    prefill, decode = _pass("prefill pass", told.prefill, planner), _pass("decode step half way", told.decode, planner)
    lines = (
        filled("TTFT", s.ttft, "s", (prefill,), "waiting, and decodes beside it"),
        filled("TPOT", s.tpot, "s", (decode,), "other lengths, and prefills beside it"),
        filled("latency", s.latency, "s", (
            Line("TTFT", s.ttft, "s"),
            Line("further tokens", (told.request.output_len - 1) * s.tpot, "s", formula="(output_len - 1) TPOT",
                 inputs=(("output_len", float(told.request.output_len)), ("TPOT", s.tpot))),
        ), "rounding"),
        _cache(told), _memory(told.memory, planner),
    )  # fmt: skip
    return Explanation(lines, constants(lines, planner.system, planner.runtime))


def _pass(name: str, step: StepCost, planner: InferencePlanner) -> Line:
    """One pass over all stages: kernels of each, what the engine adds, what is passed on."""
    stages = tuple(_stage(i, cost, planner) for i, cost in enumerate(step.stages))
    lines = stages if len(stages) > 1 else stages[0].lines
    return filled(name, step.seconds, "s", lines, "other micro-batches" if step.micro_batches > 1 else "launches")


def _stage(index: int, cost: StageCost, planner: InferencePlanner) -> Line:
    runtime = planner.runtime
    added = []
    for what, seconds in cost.stage.added:
        key = {"runtime, a layer": "layer", "runtime, a pass": "step"}.get(what)
        if key is None:
            added.append(Line(what, seconds, "s"))
            continue
        layers = float(len(cost.stage.layers))
        serving = planner.serving
        given = (("layers", layers), ("layer", serving.layer)) if key == "layer" else (("step", serving.step),)
        formula = "layers layer" if key == "layer" else "step"
        record = f"{runtime.name}: serving.constants"
        added.append(Line(what, seconds, "s", formula=formula, inputs=given, records=(record,)))
    hop = [Line("sent to the next stage", cost.stage.hop, "s")] if cost.stage.hop else []
    rows = [(float(count), op, work, price) for count, op, work, price in cost.rows()]
    busy = filled("", cost.seconds, "s", (kernels(rows), *added), "launches of the host")
    return summed(f"stage {index}", "s", (*busy.lines, *hop))


def _cache(told: Told) -> Line:
    """The cache of one request: kinds of layers."""
    rows = tuple(
        Line(
            f"{row.layers} layers, {row.kind}" + (f" of {row.window:,} tokens" if row.window else ""),
            row.request_bytes, "B", note=f"{row.token_bytes:,.6g} B a token, of all these layers on one GPU",
        )
        for row in told.cache
    )  # fmt: skip
    return summed("KV cache of a request", "B", rows, note=f"{told.request.total:,} tokens")


def _memory(m: ServingMemory, planner: InferencePlanner) -> Line:
    """What an engine keeps on a GPU."""
    name = planner.runtime.name
    usable = Line("usable", m.usable, "B", records=("memory.usable",), note="not in the sum")
    taken = m.weights + m.buffers + m.activations
    given = (
        ("reserve", planner.runtime.reserve.value),
        ("allocator_fraction", planner.runtime.allocator_fraction.value),
        ("taken", float(taken)),
    )
    rows = (
        Line("weights", m.weights, "B", note=f"{planner.precision}, of one GPU"),
        Line("buffers", m.buffers, "B"),
        Line("activations", m.activations, "B", note="at the worst moment of the largest pass"),
        Line("reserve", m.reserve, "B", formula="reserve + allocator_fraction taken", inputs=given,
             records=(f"{name}: reserve", f"{name}: allocator_fraction")),
        Line("CUDA graphs", m.graphs, "B", records=(f"{name}: serving.graph_memory",)),
        Line("cache of the requests asked for", m.cache, "B"),
    )  # fmt: skip
    pool = Line(
        "pool for the cache", m.pool, "B", inputs=(("budget", float(m.budget)), ("fixed", float(m.fixed))),
        records=(f"{name}: serving.memory_utilization",), note=f"what is left of the {planner.serving.pool} pool",
    )  # fmt: skip
    kept = tuple(row for row in rows if row.value)
    return Line("memory", sum(row.value for row in kept), "B", kept, behind=(usable, pool))
