"""A timeline in the Trace Event Format of Chrome, which https://ui.perfetto.dev opens.

source  Google, "Trace Event Format": complete events (`ph` X) and metadata (`ph` M), `ts` and `dur` in microseconds
"""

from __future__ import annotations

from typing import Any

from torchperf.graph.timeline import COMPUTE, Span, Timeline

_NAMES = {"F": "forward", "B": "backward (input)", "W": "backward (weight)", "BW": "backward"}


def trace(timeline: Timeline) -> dict[str, Any]:
    """The timeline as a dict ready for JSON: a process a rank, a thread a stream, compute first."""
    streams: dict[int, dict[str, int]] = {rank: {COMPUTE: 0} for rank in range(timeline.ranks)}
    for span in timeline.spans:
        streams[span.rank].setdefault(span.stream, len(streams[span.rank]))
    events: list[dict[str, Any]] = []
    for rank, threads in streams.items():
        events.append(_named("process_name", rank, 0, f"rank {rank}"))
        events.append({"ph": "M", "name": "process_sort_index", "pid": rank, "tid": 0, "args": {"sort_index": rank}})
        events += [_named("thread_name", rank, tid, stream) for stream, tid in threads.items()]
    events += [_event(span, streams[span.rank][span.stream]) for span in timeline.spans]
    found: dict[str, Any] = {"traceEvents": events, "displayTimeUnit": "ms"}
    return found | ({"otherData": {"note": timeline.note}} if timeline.note else {})


def _event(span: Span, tid: int) -> dict[str, Any]:
    args = {"micro_batch": span.micro_batch, "chunk": span.chunk} if span.micro_batch >= 0 else {}
    label = _NAMES.get(span.kind, span.kind)
    return {
        "ph": "X",
        "name": f"{label} {span.micro_batch}" if args else label,
        "cat": span.kind,
        "pid": span.rank,
        "tid": tid,
        "ts": span.start * 1e6,
        "dur": span.seconds * 1e6,
        "args": args,
    }


def _named(what: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": {"name": name}}
