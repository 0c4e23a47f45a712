"""An estimate as CSV: one row a share of time, of memory, or an unpriced op."""

from __future__ import annotations

import csv
import io

from torchperf.graph.estimate import Estimate, Share

COLUMNS = ("table", "name", "phase", "detail", "seconds", "share", "calls", "flops", "bytes", "bound")
MEMORY = (
    "parameters",
    "buffers",
    "gradients",
    "optimizer",
    "activations",
    "logits_loss",
    "temporary",
    "gathered",
    "buckets",
    "peak",
    "reserve",
    "reserved",
)


def estimate_csv(e: Estimate) -> str:
    """Header and rows; `share` is of device time, of device memory, or of all bytes moved."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    tables = (("kind", e.by_kind), ("module", e.by_module), ("bound", e.by_bound), ("kernel", e.top_kernels))
    for table, shares in tables:
        writer.writerows(_row(table, s, e.device_time_s) for s in shares)
    for name in (*MEMORY, "device"):
        nbytes = getattr(e.memory, name)
        writer.writerow(
            (
                "memory",
                name,
                "",
                "",
                "",
                nbytes / e.memory.device if e.memory.device else 0.0,
                "",
                "",
                nbytes,
                "",
            )
        )
    for u in e.unpriced:
        writer.writerow(("unpriced", u.op, "", "", "", u.share_of_bytes, u.calls, "", u.nbytes, ""))
    return out.getvalue()


def _row(table: str, s: Share, whole: float) -> tuple[object, ...]:
    share = s.seconds / whole if whole else 0.0
    return (table, s.name, s.phase, s.detail, s.seconds, share, s.calls, s.flops, s.nbytes, s.bound)
