"""Does it fit, and what fills the memory."""

from __future__ import annotations

from torchperf.graph.estimate import Estimate

from . import units
from .confidence import error, of_metric, sentence
from .section import WIDTH, Section

LOUD_LOSS = 0.10  # share of memory from which logits and loss bring a hint


def verdict(e: Estimate) -> Section:
    """`fits | tight | does not fit`, with the margin against usable capacity in GiB and per cent."""
    m = e.memory
    free = m.usable - m.device
    margin = f"{units.gib(abs(free))} GiB ({units.percent(abs(m.margin))}) {'free' if free >= 0 else 'too much'}"
    return Section("", lines=(f"{e.verdict}: {units.gib(m.device)} of {units.gib(m.usable)} GiB usable, {margin}",))


def table(e: Estimate) -> Section:
    """What is alive at the peak, then what the device shows, each as a share of what it can use."""
    m = e.memory
    parts = [
        ("parameters", m.parameters),
        ("buffers", m.buffers),
        ("gradients", m.gradients),
        (f"optimizer state ({e.optimizer})", m.optimizer),
        ("activations", m.activations),
        ("logits and loss", m.logits_loss),
        ("temporary", m.temporary),
        ("gathered blocks, buffers", m.gathered),
        ("gradient buckets", m.buckets),
    ]
    sums = [
        ("allocated at the peak", m.peak),
        ("reserved by allocator", m.reserved),
        ("context and libraries", m.context),
        ("device", m.device),
        ("usable capacity", m.usable),
    ]
    kept = [(name, n) for name, n in parts if n or name in ("parameters", "activations", "logits and loss")] + sums
    rows = tuple((name, units.gib(n), units.percent(n / m.usable)) for name, n in kept)
    at = f"peak at {m.peak_at}" if m.peak_at else ""
    flight = f"{m.in_flight} micro-batches (or chunks of them) in flight" if m.in_flight > 1 else ""
    host = f"{units.gib(m.host)} GiB a GPU in the memory of the host" if m.host else ""
    states = m.parameters + m.buffers + m.gradients + m.optimizer
    least = f"states alone take {units.gib(states)} GiB" if e.mode == "train" else ""
    told = of_metric(e.confidence, "memory")
    trust = "" if told is None else f"validated error: {'' if not told.exact else error(told) + ' '}{sentence(told)}"
    lines = tuple(line for line in (at, flight, host, least, trust) if line)
    return Section("memory", ("GiB", "of usable"), rows, right=(1, 2), lines=lines)


def bytes_per_parameter(e: Estimate) -> Section:
    """Bytes that each trained parameter takes, by what they hold: one row, or a row each if that is wide."""
    parts = e.memory.bytes_per_parameter
    if not parts:
        return Section("bytes per parameter")
    total = units.plain(sum(n for _, n in parts))
    headers = (*(what for what, _ in parts), "total")
    cells = (*(units.plain(n) for _, n in parts), total)
    wide = sum(max(len(h), len(c)) + 2 for h, c in zip(headers, cells, strict=True))
    if len("bytes per parameter") + wide <= WIDTH:
        right = tuple(range(1, 1 + len(headers)))
        return Section("bytes per parameter", headers, (("", *cells),), right=right)
    return Section("bytes per parameter", ("bytes",), tuple(zip(headers, cells, strict=True)), right=(1,))


def loss_hint(e: Estimate) -> str | None:
    """What to do about the logits, where they and the loss take over a tenth of the memory; else None."""
    m = e.memory
    if m.logits_loss <= LOUD_LOSS * m.device:
        return None
    share = units.percent(m.logits_loss / m.device)
    return (
        f"logits and loss take {units.gib(m.logits_loss)} GiB, {share} of memory: "
        "a fused or chunked cross-entropy never holds them whole"
    )
