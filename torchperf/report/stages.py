"""Memory of each pipeline stage: states, and the activations of every micro-batch under way."""

from __future__ import annotations

from torchperf.graph.estimate import Estimate

from . import units
from .section import Section

LISTED = 16


def table(e: Estimate) -> Section:
    """A row a stage; of more than 16 the first ones, which hold the most micro-batches, and the last."""
    rows = [
        (
            str(i), f"{m.in_flight} + {m.delayed} delayed" if m.delayed else str(m.in_flight),
            units.gib(m.parameters + m.gradients + m.optimizer), units.gib(m.activations + m.logits_loss),
            units.gib(m.device),
        )
        for i, m in enumerate(e.stages)
    ]  # fmt: skip
    hidden = len(rows) - LISTED
    lines = (f"{hidden} stages between are left out: `--json -` lists all",) if hidden > 0 else ()
    if hidden > 0:
        rows = [*rows[: LISTED - 1], rows[-1]]
    if any(m.delayed for m in e.stages):
        lines = (*lines, "delayed: micro-batches of which only what weight gradients read is still held")
    headers = ("in flight", "states, GiB", "activations and loss, GiB", "device, GiB")
    return Section("pipeline stage", headers, tuple(rows), right=(1, 2, 3, 4), lines=lines)
