"""MfuReport -> the sections of its report."""

from __future__ import annotations

from torchperf.graph.inspection import MfuReport

from . import units
from .estimate import bullets
from .section import Section


def sections(r: MfuReport) -> list[Section]:
    """The run, its utilisation in each convention, and what its tokens cost."""
    return [head(r), utilisation(r), cost(r), bullets("assumptions", r.assumptions, None)]


def head(r: MfuReport) -> Section:
    """The run that was measured, and the letters of the formulas."""
    seq = f", seq {units.count(r.seq_len)}" if r.seq_len else ""
    rate = f"{units.rate(r.tokens_per_s_per_gpu)} tokens/s per GPU"
    if r.num_gpus > 1:
        rate += f", {units.rate(r.tokens_per_s_per_gpu * r.num_gpus)} over {r.num_gpus} GPUs"
    parameters = f"N = {units.count(r.parameters)} parameters"
    if r.parameters_input_embedding:
        parameters += f", {units.count(r.parameters_input_embedding)} in the input embedding"
    lines = [f"{r.model} on {r.num_gpus} x {r.gpu}: {r.precision}{seq}", rate, parameters]
    return Section("", lines=tuple(lines))


def utilisation(r: MfuReport) -> Section:
    """MFU and HFU, the rate reached and the FLOPs per token behind them, each in its named convention."""
    rows = tuple(
        (name, units.percent2(u.value), units.si(u.flops_per_token * r.tokens_per_s_per_gpu, "FLOP/s", 1),
         units.si(u.flops_per_token, "FLOP", 3), u.convention)
        for name, group in (("MFU", r.mfu), ("HFU", r.hfu)) for u in group
    )  # fmt: skip
    headers = ("of peak", "per GPU", "per token", "convention")
    lines = (f"the peak is {units.si(r.peak_flops_per_s, 'FLOP/s')}, dense",)
    return Section("utilisation", headers, rows, right=(1, 2, 3), wrapped=(4,), lines=lines)


def cost(r: MfuReport) -> Section:
    """Days, GPU-hours and dollars of `tokens`, and the goodput that they hold for."""
    if r.seconds is None or r.days is None or r.gpu_hours is None:
        return Section("cost")
    rows = []
    if r.tokens is not None:
        rows.append(("tokens", units.count(r.tokens)))
    wall = f"{r.days:,.1f} days" if r.days >= 1 else units.seconds(r.seconds)
    rows += [("wall time", wall), ("GPU-hours", units.rate(r.gpu_hours))]
    if r.dollars is not None:
        rows.append(("price", f"${r.dollars:,.0f} at ${r.price_per_gpu_hour:,.2f} per GPU-hour"))
    if r.wall_s is not None:
        line = "the wall time was measured: what restarts and checkpoints cost is in it"
    elif r.goodput == 1.0:
        line = "at 100 % goodput, no time lost to restarts or checkpoints; `--goodput 0.9` counts such losses"
    else:
        line = f"at {100 * r.goodput:g} % goodput: that share of the wall time is spent in steps that count"
    return Section("cost", ("",), tuple(rows), lines=(line,))
