"""What each kind of file must hold: one function a kind, from an open record to the noun.

A noun that refers to other files comes back partial: the caller adds them once this file has no fault.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial

from ..graph.inference_runtime import LIBRARIES, POOLS, Serving
from ..graph.runtime import AttentionKernel, Runtime, Training
from ..graph.system import Accelerator, Efficiency, Fit, Interconnect, Memory, Peak, Sourced, System
from .database import normal
from .record import Record
from .units import BANDWIDTH, BYTES, COUNT, DURATION, FLOP_RATE, FREQUENCY, POWER, RATIO, SHARE

ENGINES = ("matrix", "vector")
DTYPES = ("fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "fp4", "int8")
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "p2p")
ATTENTION = ("flash", "unfused")
PASSES = ("unscale", "norm", "clip", "step", "foreach", "copy", "zero")
ARCHITECTURES = (
    "Pascal", "Volta", "Turing", "Ampere", "Ada Lovelace", "Hopper", "Blackwell", "Blackwell Ultra", "CDNA2", "CDNA3",
    "CDNA4",
)  # fmt: skip
OVERLAPS = ("tp", "tp-pipelined", "ep", "gradients", "weights", "p2p")
FIT_BASES = ("fitted", "assumed")
FAMILIES = {"accelerators": ("matmul", "attention", "memory"), "interconnects": ("collective",)}
_NOTHING = Sourced(0.0, "1", "assumed", "torchperf_assumption", "a runtime that serves alone", "per_process")
SERVES_ONLY = Training("parameter", "separate", "copy", ("step",), (), False, "never", False, _NOTHING, _NOTHING)
_NAME = re.compile(r"[a-z0-9]+(?:[.-][a-z0-9]+)*")


def names(record: Record) -> tuple[str, tuple[str, ...]]:
    """Name and aliases, which must be lower-case kebab."""
    name, aliases = record.text("name"), record.texts("aliases")
    for key, text in (("name", name), *(("aliases", alias) for alias in aliases)):
        if text and not _NAME.fullmatch(text):
            record.faults.add(key, f"`{text}` must be lower case with `-`, such as `{normal(text)}`")
    return name, aliases


def accelerator(record: Record) -> partial[Accelerator]:
    """An accelerators/ file, all but `host_link`; faults are left in the record."""
    name, aliases = names(record)
    peaks = []
    peak = record.table("peak")
    for engine in ENGINES:
        rates = peak.table(engine)
        for dtype in rates.among(DTYPES):
            peaks.append(Peak(engine, dtype, rates.sourced(dtype, FLOP_RATE, "per_gpu", condition=True)))
    memory = record.table("memory")
    return partial(
        Accelerator,
        name=name,
        aliases=aliases,
        vendor=record.text("vendor"),
        architecture=record.text("architecture"),
        year=record.whole("year"),
        form_factor=record.text("form_factor"),
        peaks=tuple(peaks),
        memory=Memory(
            nominal=memory.sourced("nominal", BYTES, "per_gpu", condition=True),
            usable=memory.sourced("usable", BYTES, "per_gpu", condition=True),
            bandwidth=memory.sourced("bandwidth", BANDWIDTH, "per_gpu"),
            l2=memory.sourced("l2", BYTES, "per_gpu"),
            l2_bandwidth=memory.optional("l2_bandwidth", BANDWIDTH, "per_gpu"),
        ),
        num_units=record.sourced("num_units", COUNT, "per_gpu"),
        clock=record.sourced("clock", FREQUENCY, "per_gpu", condition=True),
        tdp=record.sourced("tdp", POWER, "per_gpu"),
        link_bandwidth=record.sourced("link_bandwidth", BANDWIDTH, "per_direction"),
        efficiencies=_efficiencies(record.table("efficiency")),
        kernel_floor=record.sourced("kernel_floor", DURATION, "per_kernel"),
        fits=tuple(_fit(fit, name) for name, fit in _tables(record.table("fit", optional=True))),
        file=record.faults.file,
    )


def _efficiencies(table: Record) -> tuple[Efficiency, ...]:
    found = []
    for engine in (*ENGINES, "memory"):
        shares = table.table(engine)
        for dtype in dict.fromkeys(("default", *shares.among(DTYPES))):
            found.append(Efficiency(engine, dtype, shares.sourced(dtype, SHARE, "per_gpu", condition=True)))
    return tuple(found)


def fits(record: Record, family: str) -> tuple[Fit, ...]:
    """A fits/<family>/ file; faults are left in the record."""
    return tuple(_fit(table, f"{family}.{key}") for key, table in _tables(record))


def _tables(record: Record) -> Iterator[tuple[str, Record]]:
    return ((key, record.table(key)) for key in record.given())


def _fit(fit: Record, name: str) -> Fit:
    parameters = fit.table("parameters")
    return Fit(
        name=name,
        parameters=tuple((key, parameters.number(key)) for key in parameters.given()),
        rows=fit.text("rows"),
        range=fit.text("range"),
        median_error=fit.number("median_error"),
        p90_error=fit.number("p90_error"),
        source=fit.source(),
        basis=fit.text("basis", FIT_BASES) if fit.has("basis") else "fitted",
        file=fit.faults.file,
    )


def interconnect(record: Record) -> Interconnect:
    """An interconnects/ file; faults are left in the record."""
    name, aliases = names(record)
    efficiencies: list[tuple[str, int, Sourced]] = []
    shares = record.table("efficiency")
    efficiencies.append(("default", 1, shares.sourced("default", SHARE, "per_direction", condition=True)))
    for collective in shares.among(COLLECTIVES):
        ranks = shares.table(collective)
        for count in ranks.given():
            if not (count.isdecimal() and int(count) >= 2):
                record.faults.add(ranks.path(count), "must be a number of ranks, 2 or more")
            share = ranks.sourced(count, SHARE, "per_direction", condition=True)
            efficiencies.append((collective, int(count) if count.isdecimal() else 0, share))
    return Interconnect(
        name=name,
        aliases=aliases,
        bandwidth=record.sourced("bandwidth", BANDWIDTH, "per_direction", condition=True),
        pair_bandwidth=record.sourced("pair_bandwidth", BANDWIDTH, "per_direction"),
        latency=record.sourced("latency", DURATION, "per_hop"),
        floor=record.sourced("floor", DURATION, "per_op"),
        efficiencies=tuple(efficiencies),
        file=record.faults.file,
    )


def runtime(record: Record) -> Runtime:
    """A runtimes/ file; faults are left in the record."""
    name, aliases = names(record)
    return Runtime(
        name=name,
        aliases=aliases,
        description=record.text("description"),
        fused=record.flag("fused"),
        fused_outside=record.flag("fused_outside") if record.has("fused_outside") else True,
        attention=record.text("attention", ATTENTION),
        launch=record.sourced("launch", DURATION, "per_op"),
        reserve=record.sourced("reserve", BYTES, "per_process", condition=True),
        allocator_fraction=record.sourced("allocator_fraction", SHARE, "per_process", condition=True),
        training=SERVES_ONLY
        if record.has("serving") and not record.has("training")
        else _training(record.table("training")),
        serving=_serving(record.table("serving")) if record.has("serving") else None,
        attention_kernels=_attention_kernels(record.table("attention_kernel", optional=True)),
        file=record.faults.file,
    )


def _by_architecture(record: Record) -> Iterator[tuple[str, Sourced]]:
    """`hopper = { value = ... }`: a ratio an architecture."""
    for key in record.among(tuple(normal(name) for name in ARCHITECTURES)):
        name = next(name for name in ARCHITECTURES if normal(name) == key)
        yield name, record.sourced(key, RATIO, "per_op", condition=True)


def _attention_kernels(record: Record) -> tuple[AttentionKernel, ...]:
    """`[attention_kernel.hopper] forward = {...}, backward = {...}`."""
    found = []
    for key in record.among(tuple(normal(name) for name in ARCHITECTURES)):
        table = record.table(key)
        name = next(name for name in ARCHITECTURES if normal(name) == key)
        found.append(
            AttentionKernel(
                name, table.sourced("forward", RATIO, "per_op", condition=True),
                table.sourced("backward", RATIO, "per_op", condition=True),
            )
        )  # fmt: skip
    return tuple(found)


def _serving(record: Record) -> Serving:
    constants = _fit(record.table("constants"), "serving")
    missing = sorted({"layer", "step", "all_reduce_factor"} - {name for name, _ in constants.parameters})
    for name in missing:
        record.faults.add(record.path(f"constants.parameters.{name}"), "missing")
    return Serving(
        constants=constants,
        all_reduce=record.text("all_reduce", LIBRARIES),
        merged=record.flag("merged"),
        cuda_graphs=record.flag("cuda_graphs"),
        chunked=record.flag("chunked"),
        max_batched_tokens=record.sourced("max_batched_tokens", COUNT, "per_process", condition=True),
        logit_passes=record.sourced("logit_passes", COUNT, "per_op", condition=True),
        memory_utilization=record.sourced("memory_utilization", SHARE, "per_process", condition=True),
        pool=record.text("pool", POOLS),
        graph_memory=record.sourced("graph_memory", BYTES, "per_process", condition=True),
        block=record.sourced("block", COUNT, "per_process", condition=True),
    )


def _training(record: Record) -> Training:
    return Training(
        gradients=record.text("gradients", ("parameter", "fp32", "both")),
        accumulation=record.text("accumulation", ("fused", "separate")),
        parameters=record.text("parameters", ("copy", "shard")),
        passes=record.texts("passes", PASSES),
        overlap=record.texts("overlap", OVERLAPS),
        regather=record.flag("regather"),
        norm_gradients=record.text("norm_gradients", ("each", "step", "never")),
        scatter_gather=record.flag("scatter_gather"),
        overlap_slowdown=record.sourced("overlap_slowdown", SHARE, "per_process", condition=True),
        bucket=record.sourced("bucket", BYTES, "per_op", condition=True),
        layer_overhead=record.optional("layer_overhead", DURATION, "per_op"),
        pipeline_whole=record.has("pipeline_whole") and record.flag("pipeline_whole"),
        bucket_copies=record.has("bucket_copies") and record.flag("bucket_copies"),
        step_copies=record.optional("step_copies", BYTES, "per_process"),
        step_buffer=record.optional("step_buffer", BYTES, "per_process"),
        pace=tuple(_by_architecture(record.table("pace", optional=True))),
    )


def system(record: Record) -> partial[System]:
    """A systems/ file, all but its accelerator and links. Faults are left in the record."""
    name, aliases = names(record)
    per_node = record.sourced("accelerators_per_node", COUNT, "per_node")
    if per_node.value == 0:
        record.faults.add("accelerators_per_node.value", "`0` must be 1 or more")
    nics = record.sourced("nics_per_node", COUNT, "per_node")
    if per_node.value > 1 and not record.has("scale_up"):
        record.faults.add("scale_up", "missing, and more than one device needs it")
    if nics.value > 0 and not record.has("scale_out"):
        record.faults.add("scale_out", "missing, and `nics_per_node` is not 0")
    return partial(
        System,
        name=name,
        aliases=aliases,
        accelerators_per_node=per_node,
        nics_per_node=nics,
        host_memory=record.sourced("host_memory", BYTES, "per_node"),
        file=record.faults.file,
    )
