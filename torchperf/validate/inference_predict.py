"""A measured inference run -> what we say of it. Planners are kept by model, device, degrees, formats and runtime."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from .. import hardware, pipeline
from ..graph.errors import TorchperfError
from ..graph.inference import InferencePlan, InferencePrecision, Request, Served
from ..graph.plan import Plan
from ..graph.runtime import Runtime
from ..graph.system import System
from ..inference import Binder, Load, room_of
from ..inference_planner import InferencePlanner
from ..inference_tables import compute_bound, read_bound
from ..local_program import How
from ..price.roofline import roofline
from ..schedule.serving import steady
from ..schedule.serving_clients import clients as benchmark
from ..serving import engine_of
from .inference_rows import InferenceCase


@dataclass(frozen=True, slots=True)
class InferencePrediction:
    """Seconds, and tokens a second over all devices; each as the row's source counts it.

    bounds   (metric, seconds at full peak and bandwidth), where a figure is one pass
    """

    ttft: float
    tpot: float
    latency: float
    throughput: float
    bounds: tuple[tuple[str, float], ...] = ()

    def figure(self, metric: str) -> float:
        """One of ttft | tpot | latency | throughput."""
        figures = {"ttft": self.ttft, "tpot": self.tpot, "latency": self.latency, "throughput": self.throughput}
        return figures[metric]


Predict = Callable[[InferenceCase], InferencePrediction]


class Predictor:
    """Prices cases. What cases in a row share is kept: captures of the last model, the planner of its last setting.

    runtimes   name -> runtime, for a fit that tries constants
    """

    def __init__(self, runtimes: Callable[[str], Runtime] = hardware.load_runtime) -> None:
        self.runtimes = runtimes
        self._binder = Binder("")
        self._key: tuple[object, ...] = ()
        self._planner: InferencePlanner | None = None

    def __call__(self, case: InferenceCase) -> InferencePrediction:
        """The prediction; raises TorchperfError where it cannot be made."""
        if case.serving == "forward":
            return self._forward(case)
        planner, request = self.planner(case), Request(case.input_len, case.output_len)
        if case.serving == "static":
            return _static(case, planner, request)
        return _continuous(case, planner, request)

    def planner(self, case: InferenceCase) -> InferencePlanner:
        """The planner of a case, the same for cases that differ in batch and lengths alone."""
        key = planner_key(case)
        if self._planner is None or self._key != key:
            split = case.degrees
            plan = InferencePlan(split.tp, split.pp, split.ep, split.attention_dp)
            precision = InferencePrecision(case.weights, case.activations, case.kv)
            self._planner = InferencePlanner(
                self._bind(case.model), system_of(case), self.runtimes(case.runtime), precision, plan
            )
            self._key = key
        return self._planner

    def _bind(self, model: str) -> Binder:
        if self._binder.model != model:
            self._binder = Binder(model)
        return self._binder

    def _forward(self, case: InferenceCase) -> InferencePrediction:
        """One pass over the sequence, as the whole model answers it: logits of every token."""
        graph = self._bind(case.model)("forward", {"batch": case.batch, "seq": case.input_len})
        how = How(case.weights, "adamw", case.attention)
        runtime = self.runtimes(case.runtime)
        planner = pipeline.planner_of(case.model, graph, "forward", system_of(case), runtime, how)
        step = planner.step(Plan(micro_batch=case.batch).resolved(case.degrees.num_gpus, case.batch))
        seconds, device = step.seconds, planner.system.accelerator
        plain = sum(count * roofline(work, device) for count, _, work, _ in step.rows)
        rate = case.batch * case.input_len / seconds
        return InferencePrediction(seconds, seconds, seconds, rate, (("ttft", plain), ("latency", plain)))


def planner_key(case: InferenceCase) -> tuple[object, ...]:
    """What cases of one planner have in common; a sort key that brings those of a model together."""
    split = case.degrees
    return (
        case.model, case.serving == "forward", case.gpu, case.system, case.watts, case.runtime, case.weights,
        case.activations, case.kv, case.attention, split.num_gpus, split.tp, split.pp, split.ep, split.attention_dp,
    )  # fmt: skip


def system_of(case: InferenceCase) -> System:
    """The devices of a case, under its power cap."""
    system = hardware.load_system(case.system) if case.system else hardware.single(hardware.load_accelerator(case.gpu))
    return replace(system, accelerator=system.accelerator.capped(case.watts)) if case.watts else system


def _static(case: InferenceCase, planner: InferencePlanner, request: Request) -> InferencePrediction:
    """One batch from start to end; where an engine's pool holds less, one part after another."""
    size = case.batch
    if planner.serving.pool != "exact":
        size = min(size, _most(planner, request))
    rounds, rest = divmod(case.batch, size)
    served = _generated(case, planner, size, request)
    latency = rounds * served.latency
    if rest:
        latency += _generated(case, planner, rest, request).latency
    tpot = served.tpot
    if case.tpot == "latency":
        tpot = latency / case.output_len
    elif case.tpot == "empty":
        tpot = planner.decode_seconds(case.batch, Request(1, case.output_len)) / max(1, case.output_len - 1)
    counted = case.output_len + (case.input_len if case.throughput == "total" else 0)
    rate = case.batch / tpot if case.throughput == "step" and tpot else case.batch * counted / latency
    bounds = _bounds(case, planner, request) if size == case.batch else ()
    return InferencePrediction(served.ttft, tpot, latency, rate, bounds)


def _bounds(case: InferenceCase, planner: InferencePlanner, request: Request) -> tuple[tuple[str, float], ...]:
    """The prompt's pass, and a decode step half way, at full peak and bandwidth."""
    device = planner.system.accelerator
    found = []
    if case.first != "decode":
        found.append(("ttft", compute_bound(planner.prefill(case.batch, request.input_len), device)))
    if case.tpot not in ("latency", "empty") and request.output_len > 1:
        half = planner.decode(case.batch, request.input_len + request.output_len // 2)
        found.append(("tpot", read_bound(half, device.memory.bandwidth.value)))
    return tuple(found)


def _generated(case: InferenceCase, planner: InferencePlanner, batch: int, request: Request) -> Served:
    """A static batch; with `first` decode, the last token of the prompt takes a decode step."""
    served = planner.generate(batch, request)
    if case.first != "decode":
        return served
    first = planner.decode(batch, max(request.input_len - 1, 1)).seconds
    if request.input_len > 1:
        first += planner.prefill(batch, request.input_len - 1).seconds
    return replace(served, ttft=first, latency=served.latency - served.ttft + first)


def _continuous(case: InferenceCase, planner: InferencePlanner, request: Request) -> InferencePrediction:
    """Clients with one request each at any time; those that the engine has no room for wait outside of it."""
    most = _most(planner, request)
    clients = case.batch if case.serving == "closed" else most
    held, groups = min(clients, most), planner.plan.attention_dp
    engine = engine_of(planner, request, int(planner.serving.max_batched_tokens.value))
    own = max(held / groups, 1.0)
    if case.rounds:
        served = benchmark(engine, request, round(own), case.rounds * round(own), alike=case.alike)
    else:
        served = steady(engine, request, own)
    wait = (clients - held) / (served.requests_per_s * groups)
    rate = served.tokens_per_s * groups
    return InferencePrediction(served.ttft + wait, served.tpot, served.latency + wait, rate)


def _most(planner: InferencePlanner, request: Request) -> int:
    """Requests that the engine holds at once. Raises TorchperfError where it holds none."""
    facts = planner.lowered("decode", {"batch": 1, "kv": max(request.input_len, 2)}).facts
    most = room_of(planner, facts, request, Load(concurrency=1)).most(request.total)
    if most < 1:
        device = planner.system.accelerator.name
        raise TorchperfError(f"`{facts.model}` on `{device}` leaves no room for a request of {request.total} tokens")
    return most
