"""One estimate, read top to bottom."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields, replace
from functools import cache, partial

from . import hardware
from .annotate import works as annotated
from .answer import Setting, answer, unpriced_ops
from .confidence import confidence
from .effect import check_plan, check_run
from .frontend import load
from .fuse import fuse
from .graph.errors import TorchperfError
from .graph.estimate import Estimate, Run
from .graph.graph import Capture, Graph
from .graph.plan import Plan
from .graph.runtime import Runtime
from .graph.system import Accelerator, System
from .local_program import How, whole
from .rewrite import attention, optimizer, precision, recompute
from .rewrite import optimizer as rewrite_optimizer
from .step import Planner, Step
from .suggestions import Advisor, PlannerOf, states_alone
from .suggestions_ways import Way

PLAN_FLAGS = frozenset(field.name for field in fields(Plan)) - {"micro_batch", "recompute"}


def estimate(
    model: str | Capture, *, gpu: str = "", num_gpus: int | None = None, mode: str = "train",
    seq_len: int | None = None, micro_batch: int | None = None, precision: str = "bf16-mixed",
    optimizer: str = "adamw", recompute: str = "none", runtime: str = "eager", attention: str = "auto",
    strict: bool = False, refresh: bool = False, power_cap: float | None = None, system: str | None = None,
    tokens: float | None = None, goodput: float = 1.0, price_per_gpu_hour: float | None = None,
    plan: Plan | None = None, suggest: bool | None = None, **parallelism: object,
) -> Estimate:  # fmt: skip
    """What one step of `model` costs on devices of `gpu`.

    model        a path, bundled name, hub id or saved graph as on the command line, or what `torchperf.capture` gave
    gpu          an accelerator of the hardware database, or the path of a TOML file; may be left to `system`
    system       nodes and their links; None: the first one in the database with this device
    num_gpus     devices in all; None: as many as the plan needs
    mode         "train" (forward, backward, optimizer) or "forward"
    sizes        `micro_batch` samples of `seq_len` tokens; None takes the model's default
    power_cap    watts that the device may draw, where less than its TDP
    tokens       of a whole run, for its days, GPU-hours and, at `price_per_gpu_hour`, dollars; `goodput` is the share
                 of the time that trains
    plan         a `Plan`; or its fields one by one: tp=8, pp=4, sequence_parallel=True, ...
    suggest      price other plans too, for what to change: True, False, or None where it does not fit or is tight
    Raises TorchperfError. `strict` refuses operators without a rule.
    """
    return estimated(
        model, gpu=gpu, num_gpus=num_gpus, mode=mode, seq_len=seq_len, micro_batch=micro_batch, precision=precision,
        optimizer=optimizer, recompute=recompute, runtime=runtime, attention=attention, strict=strict, refresh=refresh,
        power_cap=power_cap, system=system, tokens=tokens, goodput=goodput, price_per_gpu_hour=price_per_gpu_hour,
        plan=plan, suggest=suggest, **parallelism,
    )[0]  # fmt: skip


def estimated(
    model: str | Capture, *, gpu: str = "", num_gpus: int | None = None, mode: str = "train",
    seq_len: int | None = None, micro_batch: int | None = None, precision: str = "bf16-mixed",
    optimizer: str = "adamw", recompute: str = "none", runtime: str = "eager", attention: str = "auto",
    strict: bool = False, refresh: bool = False, power_cap: float | None = None, system: str | None = None,
    tokens: float | None = None, goodput: float = 1.0, price_per_gpu_hour: float | None = None,
    plan: Plan | None = None, suggest: bool | None = None, **parallelism: object,
) -> tuple[Estimate, Step]:  # fmt: skip
    """`estimate`, with the priced step that it tells of."""
    rewrite_optimizer.known(optimizer)
    runs_on = hardware.load_runtime(runtime)
    _check_trains(runs_on, mode)
    check_run(mode, optimizer, tokens, goodput, price_per_gpu_hour)
    if num_gpus is not None and num_gpus < 1:
        raise TorchperfError(f"`num_gpus` is {num_gpus}: it must be at least 1")
    asked = _plan(plan, recompute, micro_batch, parallelism)
    nodes = load_system(gpu, system, num_gpus or asked.least_gpus, power_cap)
    _check_dtype(nodes.accelerator, precision)
    capture, graph = _bound(model, mode, asked.micro_batch or None, seq_len, refresh)
    shards = runs_on.training.parameters == "shard"
    resolved = asked.resolved(num_gpus or 0, graph.size("batch") or 1, shards=shards)
    check_plan(asked, resolved, graph)
    planner = planner_of(model, graph, mode, nodes, runs_on, How(precision, optimizer, attention))
    step = planner.step(resolved)
    if strict:
        _refuse_unpriced(step)
    setting = Setting(nodes, runs_on, resolved.num_gpus, precision, optimizer, step.plan, power_cap)
    found = answer(graph, whole(graph, planner.how, runs_on), step, attention_flops(graph), setting)
    run = _run(found, tokens, goodput, price_per_gpu_hour) if tokens else None
    known = confidence(mode, nodes.accelerator.name, runs_on.name)
    found = replace(found, run=run, confidence=known)
    if suggest is False:
        return found, step
    way = Way(asked, num_gpus, precision, graph.size("batch") or 1, shards)
    another = _planners(capture, graph, planner, lambda n: load_system(gpu, system, n, power_cap), resolved)
    advisor = Advisor(found, step, way, setting, another, strict)
    return replace(found, suggestions=advisor.suggestions(suggest is True), advice=states_alone(found)), step


def _planners(capture: Capture, graph: Graph, planner: Planner, nodes: Callable[[int], System], own: Plan) -> PlannerOf:
    """Planners of the same model on other GPUs, with another micro-batch or precision; captures nothing anew."""
    known: dict[tuple[object, ...], Planner] = {}

    def bind(batch: int, length: int | None) -> Graph:
        sizes = dict(graph.bound or ())
        sizes.update({name: n for name, n in (("batch", batch), ("seq", length)) if n is not None})
        return capture.bind(**sizes)

    def another(plan: Plan, precision_name: str) -> Planner:
        batch = plan.micro_batch
        system = planner.system if plan.num_gpus == own.num_gpus else nodes(plan.num_gpus)
        if batch == own.micro_batch and precision_name == planner.how.precision and system == planner.system:
            return planner
        _check_dtype(system.accelerator, precision_name)
        key = (batch, precision_name, system.name, system.num_accelerators)
        if key not in known:
            how = replace(planner.how, precision=precision_name)
            bound = planner.bind if batch == own.micro_batch else cache(partial(bind, batch))
            known[key] = Planner(bound, planner.seq, system, planner.runtime, how)
        return known[key]

    return another


def _run(e: Estimate, tokens: float, goodput: float, price: float | None) -> Run:
    if not 0 < goodput <= 1:
        raise TorchperfError(f"`--goodput {goodput:g}` is no share", hint="give a number above 0, at most 1")
    if not 0 < tokens < math.inf:
        raise TorchperfError(f"`--tokens {tokens:g}` is no number of tokens", hint="give a number above 0")
    steps = math.ceil(tokens / e.tokens_per_step)
    return Run(tokens, steps, goodput, steps * e.step_time_s / goodput, e.num_gpus, price)


def planner_of(model: str | Capture, graph: Graph, mode: str, system: System, runtime: Runtime, how: How) -> Planner:
    """A planner of one model; `graph` is bound at the whole sequence."""
    batch, seq = graph.size("batch"), graph.size("seq")

    def bind(length: int | None) -> Graph:
        return graph if length == seq else bound_graph(model, mode, batch, length)

    return Planner(bind, seq, system, runtime, how)


def load_system(gpu: str, system: str | None, num_gpus: int, power_cap: float | None) -> System:
    """The nodes to run on: the system named, or the database's for the device. Raises TorchperfError."""
    if not gpu and system is None:
        raise TorchperfError("no device given", hint="give `--gpu NAME` or `--system NAME`")
    if system is None:
        nodes = hardware.system_for(hardware.load_accelerator(gpu), num_gpus)
    else:
        nodes = hardware.load_system(system)
        if gpu and hardware.load_accelerator(gpu).name != nodes.accelerator.name:
            raise TorchperfError(
                f"`--system {system}` has devices of another kind than `--gpu {gpu}`",
                facts=[("system", nodes.accelerator.name)],
                hint="leave out `--gpu`",
            )
    return nodes if power_cap is None else replace(nodes, accelerator=nodes.accelerator.capped(power_cap))


def _plan(plan: Plan | None, recompute: str, micro_batch: int | None, parallelism: dict[str, object]) -> Plan:
    unknown = sorted(set(parallelism) - PLAN_FLAGS)
    if unknown:
        raise TorchperfError(f"unknown argument `{unknown[0]}`", hint=f"a plan has {', '.join(sorted(PLAN_FLAGS))}")
    base = plan or Plan()
    base = base if recompute == "none" else replace(base, recompute=recompute)
    base = replace(base, **parallelism)  # type: ignore[arg-type]
    return replace(base, micro_batch=micro_batch) if micro_batch else base


def attention_flops(graph: Graph) -> int:
    """Non-causal FLOPs of attention in forward and backward, however the model wrote it: 12 L H D S a token."""
    fused = attention.apply(graph, "flash")
    return sum(
        count * work.flops_noncausal
        for count, row in zip(fused.counts, annotated(fused), strict=True)
        for work in row
        if work.kind == "attention"
    )


def _check_trains(runtime: Runtime, mode: str) -> None:
    """Refuse to train with what only serves."""
    if mode == "train" and runtime.serving is not None:
        raise TorchperfError(
            f"runtime `{runtime.name}` serves, it does not train",
            facts=[("where", f"{runtime.file}: serving")],
            hint="choose one that trains, such as eager, compile, fsdp-eager, fsdp-compile or megatron-core; or ask "
            "for `--mode inference`",
        )


def _check_dtype(device: Accelerator, precision_name: str) -> None:
    """Tell of a missing element type before a model is captured."""
    for dtype in precision.dtypes_needed(precision_name):
        device.peak_flops_per_s(device.matmul_engine(dtype), dtype)


def bound_graph(
    model: str | Capture, mode: str, micro_batch: int | None, seq_len: int | None, refresh: bool = False
) -> Graph:
    """The model's recorded program at the sizes asked for."""
    return _bound(model, mode, micro_batch, seq_len, refresh)[1]


def _bound(
    model: str | Capture, mode: str, micro_batch: int | None, seq_len: int | None, refresh: bool
) -> tuple[Capture, Graph]:
    """The capture, and its graph at these sizes."""
    sizes = {name: size for name, size in (("batch", micro_batch), ("seq", seq_len)) if size is not None}
    if mode not in ("train", "forward"):
        raise TorchperfError(
            f"unknown mode `{mode}`", hint="one of train, forward; `torchperf.estimate_inference` answers for serving"
        )
    if not isinstance(model, (str, Capture)):
        raise TorchperfError(
            f"a model is a name, a path or a capture, not `{type(model).__name__}`",
            hint="capture a live module first: `torchperf.capture(module, inputs)`",
        )
    if isinstance(model, Capture):
        if model.facts.mode != mode:
            raise TorchperfError(f"the capture is of mode `{model.facts.mode}`", hint=f"capture it with mode `{mode}`")
        return model, model.bind(**sizes)
    capture, graph = load.load(model, mode, sizes, refresh)
    return capture, graph.bind(**{**dict(capture.facts.sizes), **sizes})


def lower(
    graph: Graph, precision_name: str, optimizer_name: str | None, recompute_how: str, attention_form: str,
    runtime: Runtime,
) -> Graph:  # fmt: skip
    """The program that one device alone runs: precision, form of attention, recompute, optimizer, kernels."""
    to = precision.precision(precision_name)
    program = whole(graph, How(precision_name, optimizer_name or "adamw", attention_form), runtime)
    program = recompute.apply(program, recompute_how)
    if graph.facts.mode == "train" and optimizer_name is not None:
        program = optimizer.append(program, optimizer_name, to, runtime.training)
    return fuse(program, annotated(program), runtime.fused_outside) if runtime.fused else program


def _refuse_unpriced(step: Step) -> None:
    unpriced = unpriced_ops(step.rows)
    if unpriced:
        raise TorchperfError(
            f"{len(unpriced)} operators have no rule",
            facts=[(u.op, f"{u.calls} calls, {u.share_of_bytes:.2%} of bytes") for u in unpriced],
            hint="leave out `--strict` to price their bytes alone, or add a rule in torchperf/annotate",
        )
