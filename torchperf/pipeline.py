"""One estimate, read top to bottom."""

from __future__ import annotations

from dataclasses import dataclass

from . import hardware
from .annotate import works as annotated
from .answer import Setting, answer, unpriced_ops
from .frontend import load
from .fuse import fuse
from .graph.errors import TorchperfError
from .graph.estimate import Estimate
from .graph.graph import Capture, Graph
from .graph.system import Accelerator, Runtime
from .graph.work import Works
from .partition.tensor_parallel import tensor_parallel
from .price import Pricer
from .rewrite import attention, optimizer, precision, recompute
from .rewrite import optimizer as rewrite_optimizer
from .schedule import memory, timeline


def estimate(
    model: str | Capture, *, gpu: str, num_gpus: int = 1, mode: str = "train", seq_len: int | None = None,
    micro_batch: int | None = None, precision: str = "bf16-mixed", optimizer: str = "adamw",
    recompute: str = "none", runtime: str = "eager", attention: str = "auto", strict: bool = False,
    refresh: bool = False, tp: int = 1, sequence_parallel: bool = False, power_cap: float | None = None,
) -> Estimate:  # fmt: skip
    """What one step of `model` costs on one device of `gpu`.

    model      a path, bundled name, hub id or saved graph as on the command line, or what `torchperf.capture` gave
    gpu        an accelerator of the hardware database, or the path of a TOML file
    mode       "train" (forward, backward, optimizer) or "forward"
    sizes      `micro_batch` samples of `seq_len` tokens; None takes the model's default
    power_cap  watts that the device may draw, where less than its TDP
    tp         devices that share the step by tensor parallelism, split as the graph itself suggests
    Raises TorchperfError. `strict` refuses operators without a rule.
    """
    num_gpus = _devices(num_gpus, tp)
    rewrite_optimizer.known(optimizer)
    device = hardware.load_accelerator(gpu)
    device = device if power_cap is None else device.capped(power_cap)
    runs_on = hardware.load_runtime(runtime)
    _check_dtype(device, precision)
    graph = bound_graph(model, mode, micro_batch, seq_len, refresh)
    program = whole = lower(graph, precision, optimizer, recompute, attention, runs_on)
    if tp > 1:
        split = Split(tp, sequence_parallel)
        program = lower(graph, precision, optimizer, recompute, attention, runs_on, split)
    works = annotated(program)
    if strict:
        _refuse_unpriced(program, works)
    pricer = Pricer(hardware.system_for(device, num_gpus), runs_on)
    prices = tuple(
        tuple(pricer(op, work) for op, work in zip(block.ops, row, strict=True))
        for block, row in zip(program.blocks, works, strict=True)
    )
    order = [segment.block for segment in program.segments]
    time = timeline.step_time([[p.seconds for p in row] for row in prices], order, runs_on.launch.value)
    peak = memory.peak(program, works)
    core = attention_flops(graph)
    setting = Setting(device, runs_on, num_gpus, precision, optimizer, recompute, tp, sequence_parallel, power_cap)
    return answer(graph, whole, program, works, prices, time, peak, core, setting)


@dataclass(frozen=True, slots=True)
class Split:
    """Tensor parallelism over `tp` devices; with `sequence`, activations between its regions are split too."""

    tp: int
    sequence: bool = False


def _devices(num_gpus: int, tp: int) -> int:
    """Devices in all: at least the `tp` that share a step."""
    for name, value in (("num_gpus", num_gpus), ("tp", tp)):
        if value < 1:
            raise TorchperfError(f"`{name}` is {value}: it must be at least 1")
    if num_gpus == 1:
        return tp
    if num_gpus % tp:
        raise TorchperfError(
            f"`--tp {tp}` does not divide `--num-gpus {num_gpus}`", hint=f"give a multiple of {tp} GPUs"
        )
    return num_gpus


def attention_flops(graph: Graph) -> int:
    """Non-causal FLOPs of attention in forward and backward, however the model wrote it: 12 L H D S a token."""
    fused = attention.apply(graph, "flash")
    return sum(
        count * work.flops_noncausal
        for count, row in zip(fused.counts, annotated(fused), strict=True)
        for work in row
        if work.kind == "attention"
    )


def _check_dtype(device: Accelerator, precision_name: str) -> None:
    """Tell of a missing element type before a model is captured."""
    compute = precision.precision(precision_name).compute
    device.peak_flops_per_s(device.matmul_engine(compute), compute)


def bound_graph(
    model: str | Capture, mode: str, micro_batch: int | None, seq_len: int | None, refresh: bool = False
) -> Graph:
    """The model's recorded program at the sizes asked for."""
    sizes = {name: size for name, size in (("batch", micro_batch), ("seq", seq_len)) if size is not None}
    if mode not in ("train", "forward"):
        raise TorchperfError(f"unknown mode `{mode}`", hint="one of train, forward")
    if not isinstance(model, (str, Capture)):
        raise TorchperfError(
            f"a model is a name, a path or a capture, not `{type(model).__name__}`",
            hint="capture a live module first: `torchperf.capture(module, inputs)`",
        )
    if isinstance(model, Capture):
        if model.facts.mode != mode:
            raise TorchperfError(f"the capture is of mode `{model.facts.mode}`", hint=f"capture it with mode `{mode}`")
        return model.bind(**sizes)
    capture, graph = load.load(model, mode, sizes, refresh)
    return graph.bind(**{**dict(capture.facts.sizes), **sizes})


def lower(
    graph: Graph, precision_name: str, optimizer_name: str | None, recompute_how: str, attention_form: str,
    runtime: Runtime, split: Split | None = None,
) -> Graph:  # fmt: skip
    """The program that the runtime runs: precision, form of attention, split, recompute, optimizer, kernels."""
    to = precision.precision(precision_name)
    program = precision.apply(graph, to)
    program = attention.apply(program, attention.form(attention_form, runtime.fused))
    if split is not None:
        program = tensor_parallel(program, split.tp, sequence=split.sequence).program
    program = recompute.apply(program, recompute_how)
    if graph.facts.mode == "train" and optimizer_name is not None:
        program = optimizer.append(program, optimizer_name, to)
    return fuse(program, annotated(program)) if runtime.fused else program


def _refuse_unpriced(program: Graph, works: Works) -> None:
    unpriced = unpriced_ops(program, works)
    if unpriced:
        raise TorchperfError(
            f"{len(unpriced)} operators have no rule",
            facts=[(u.op, f"{u.calls} calls, {u.share_of_bytes:.2%} of bytes") for u in unpriced],
            hint="leave out `--strict` to price their bytes alone, or add a rule in torchperf/annotate",
        )
