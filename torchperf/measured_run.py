"""Utilisation of a run that was measured, in each named convention, and what its tokens cost."""

from __future__ import annotations

from dataclasses import dataclass

from .annotate import works as annotated
from .graph.errors import TorchperfError
from .graph.estimate import Mfu
from .graph.graph import Capture, Graph
from .graph.inspection import MfuReport
from .hardware import load_accelerator, load_runtime
from .pipeline import attention_flops, bound_graph, lower
from .rewrite.precision import precision as precision_of
from .utilisation import PUBLISHED, active_parameters, conventions, flops_of

BARE = "6 N, no attention: only the number of parameters was given"
GIVEN = "FLOPs per token as given"


def mfu(
    model: str | Capture | None = None, *, parameters: int | None = None, flops_per_token: float | None = None,
    gpu: str, num_gpus: int = 1, seq_len: int | None = None, precision: str = "bf16-mixed",
    tokens_per_s_per_gpu: float | None = None, tokens: int | None = None, global_batch: int | None = None,
    steps: int | None = None, wall_s: float | None = None, price_per_gpu_hour: float | None = None,
    goodput: float = 1.0, refresh: bool = False,
) -> MfuReport:  # fmt: skip
    """MFU and HFU of a run on `num_gpus` of `gpu` against the dense peak of `precision`.

    The rate is `tokens_per_s_per_gpu`, or `tokens` (or `global_batch` * `steps` * `seq_len`) over all GPUs in `wall_s`
    seconds. The FLOPs come from `model`, or from `parameters` alone (6 N), or from `flops_per_token`.
    Raises TorchperfError.
    """
    for name, value in (("num_gpus", num_gpus), ("wall_s", wall_s), ("tokens", tokens), ("goodput", goodput)):
        if value is not None and value <= 0:
            raise TorchperfError(f"`{name}` is {value}: it must be above 0")
    device = load_accelerator(gpu)
    compute = precision_of(precision).compute
    peak = device.peak_flops_per_s(device.matmul_engine(compute), compute)
    graph = bound_graph(model, "train", 1, seq_len, refresh) if model is not None else None
    length = graph.size("seq") or 1 if graph is not None else seq_len
    if tokens is None and global_batch is not None and steps is not None and length is not None:
        tokens = global_batch * steps * length
    rate = tokens_per_s_per_gpu
    if rate is None:
        if tokens is None or wall_s is None:
            raise TorchperfError("the run has no rate", hint="give `tokens_per_s_per_gpu`, or `tokens` and `wall_s`")
        rate = tokens / (wall_s * num_gpus)
    counted = (
        _of_model(graph, precision, length or 1, rate, peak)
        if graph is not None
        else _of_given(parameters, flops_per_token, rate, peak)
    )
    return MfuReport(
        model=counted.name, gpu=device.name, num_gpus=num_gpus, precision=precision, parameters=counted.parameters,
        parameters_input_embedding=counted.embedding, seq_len=length, tokens_per_s_per_gpu=rate, peak_flops_per_s=peak,
        mfu=counted.mfu, hfu=counted.hfu, tokens=tokens, wall_s=wall_s, price_per_gpu_hour=price_per_gpu_hour,
        goodput=goodput, assumptions=counted.assumptions,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Counted:
    """What is known of the model, and its rows at the rate of the run."""

    name: str
    parameters: int
    mfu: tuple[Mfu, ...]
    hfu: tuple[Mfu, ...]
    embedding: int = 0
    assumptions: tuple[str, ...] = ()


def _of_model(graph: Graph, precision: str, length: int, rate: float, peak: float) -> _Counted:
    """FLOPs counted from the graph, as it is and under full recompute."""
    program = lower(graph, precision, None, "none", "auto", load_runtime("eager"))
    again = lower(graph, precision, None, "full", "auto", load_runtime("eager"))
    works, works_again = annotated(program), annotated(again)
    per_step = (graph.size("batch") or 1) * length
    flops = flops_of(program, works, lambda w: w.flops)
    full = flops_of(again, works_again, lambda w: w.flops)
    core = attention_flops(graph)
    rows, _ = conventions(program, flops, core, per_step, rate, peak)
    _, hardware = conventions(again, full, core, per_step, rate, peak)
    hfu = tuple(Mfu(f"under full recompute, {row.convention}", row.flops_per_token, row.value) for row in hardware)
    active = active_parameters(program, per_step)
    idle = f"{active.idle:,} parameters of experts that a token does not meet are left out of N"
    return _Counted(graph.facts.model, active.total, rows, hfu, active.embedding, (idle,) if active.idle else ())


def _of_given(parameters: int | None, flops_per_token: float | None, rate: float, peak: float) -> _Counted:
    """FLOPs as given, or 6 of each parameter."""
    if flops_per_token is None and parameters is None:
        raise TorchperfError("nothing says what a token costs", hint="give a model, `parameters` or `flops_per_token`")
    per_token = flops_per_token if flops_per_token is not None else 6.0 * (parameters or 0)
    return _Counted(
        name=f"{parameters:,} parameters" if parameters else "given FLOPs",
        parameters=parameters or 0,
        mfu=(Mfu(GIVEN if flops_per_token is not None else BARE, per_token, per_token * rate / peak),),
        hfu=(Mfu(PUBLISHED, 4 / 3 * per_token, 4 / 3 * per_token * rate / peak),),
    )
