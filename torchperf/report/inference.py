"""InferenceEstimate -> the sections of its report, in the order in which people ask."""

from __future__ import annotations

from torchperf.graph.estimate import Share
from torchperf.graph.inference import InferenceEstimate, Served

from . import units
from .confidence import error, of_metric, sentence
from .estimate import bullets
from .section import Section
from .suggestion import serving_sentence

OPERATORS, LISTED = 8, 8


def sections(e: InferenceEstimate, *, whole: bool = False) -> list[Section]:
    """Verdict, memory, cache, what requests see, where the time of prefill and of decode goes, how far to trust it."""
    return [
        _head(e),
        _verdict(e),
        _memory(e),
        _cache(e),
        _served(e),
        _passes(e),
        _operators("prefill", e.prefill_ops, whole),
        _operators("decode", e.decode_ops, whole),
        bullets("suggestions", [serving_sentence(e, s) for s in e.suggestions], None),
        Section("definitions", items=tuple(f"{word}: {meaning}" for word, meaning in e.definitions)),
        bullets("assumptions", e.assumptions, None if whole else LISTED, tight=True),
        bullets("guesses", e.guesses, None if whole else LISTED, tight=True),
        Section("", lines=(f"sources: {', '.join(e.sources)}",) if e.sources else (), tight=not whole),
    ]


def _head(e: InferenceEstimate) -> Section:
    r, p = e.request, e.plan
    spread = [f"{name} {n}" for name, n in (("tp", p.tp), ("pp", p.pp), ("ep", p.ep)) if n > 1]
    spread += [f"attention-dp {p.attention_dp}"] if p.attention_dp > 1 else []
    spread += [f"{p.replicas} engines"] if p.replicas > 1 else []
    if e.disaggregated:
        spread.append(f"{e.disaggregated[0]} engines for prompts, {e.disaggregated[1]} for tokens")
    extra = [f"{units.count(r.known)} of them cached"] if r.known else []
    extra += [f"{r.speculative} drafts a step, {units.percent(r.acceptance)} accepted"] if r.speculative else []
    active = "" if e.active_parameters == e.parameters else f", {units.count(e.active_parameters)} active"
    static = e.simulated is None and not e.disaggregated
    asked = f"batch {e.batch}" if static else f"{e.served.concurrency:.4g} at a time"
    return Section(
        "",
        lines=(
            f"{e.model} on {e.num_gpus} x {e.gpu}: inference",
            ", ".join([f"{units.count(r.input_len)} tokens in, {units.count(r.output_len)} out", *extra, asked]),
            ", ".join([str(e.precision), e.runtime, *spread]),
            f"{units.count(e.parameters)} parameters{active}",
        ),
    )


def _verdict(e: InferenceEstimate) -> Section:
    context = "unbounded" if e.max_context is None else f"{units.count(e.max_context)} tokens"
    limit = " (all that the model has positions for)" if e.max_context == e.positions else ""
    return Section(
        "",
        lines=(
            f"{e.verdict}: max context of one request {context}{limit}; "
            f"{units.count(e.max_concurrency)} requests of {units.count(e.request.total)} tokens at once in an engine",
        ),
    )


def _memory(e: InferenceEstimate) -> Section:
    m = e.memory
    rows = (
        ("weights", m.weights), ("buffers", m.buffers), ("activations of the largest pass", m.activations),
        ("reserve", m.reserve), ("CUDA graphs", m.graphs), ("pool for the cache", m.pool),
        ("cache of the requests asked for", m.cache), ("usable", m.usable),
    )  # fmt: skip
    title = f"memory per GPU, stage {m.stage}" if e.plan.pp > 1 else "memory per GPU"
    shown = tuple((name, units.gib(size)) for name, size in rows if size or name.startswith(("pool", "cache")))
    return Section(title, ("GiB",), shown, right=(1,))


def _cache(e: InferenceEstimate) -> Section:
    rows = tuple(
        (row.kind, units.count(row.layers), units.count(row.window) if row.window else "all",
         units.plain(row.token_bytes) + (" a sequence" if row.kind == "state" else ""), units.size(row.request_bytes))
        for row in e.cache
    )  # fmt: skip
    total = f"{units.plain(e.kv_bytes_per_token)} B a token in all"
    own = f", {units.plain(e.kv_bytes_per_token_per_gpu)} B on a GPU"
    headers = ("layers", "tokens kept", "B/token, a GPU", "one request")
    return Section("cache", headers, rows, right=(1, 2, 3, 4), lines=(total + own,))


def _served(e: InferenceEstimate) -> Section:
    columns: list[Served] = [e.served, *([e.simulated] if e.simulated else [])]
    headers = ("closed form", "by events") if e.simulated else ("",)
    per_gpu = e.tokens_per_s_per_gpu / e.served.tokens_per_s
    rows: list[tuple[str, ...]] = [
        ("TTFT", *(units.seconds(s.ttft) for s in columns)),
        ("TPOT", *(units.seconds(s.tpot) for s in columns)),
        ("worst ITL", *(units.seconds(s.itl_worst) for s in columns)),
        ("latency", *(units.seconds(s.latency) for s in columns)),
        ("tokens/s/user", *(units.rate(1 / s.tpot) if s.tpot else "-" for s in columns)),
        ("tokens/s/GPU", *(units.rate(s.tokens_per_s * per_gpu) for s in columns)),
        ("requests/s/engine", *(units.plain(s.requests_per_s) for s in columns)),
    ]
    if e.simulated:
        rows.append(("requests at a time", *(f"{s.concurrency:.1f}" for s in columns)))
        rows.append(("time with prefill", *(units.percent(s.busy) for s in columns)))
    lines = [] if e.burst is None else [
        f"where all {units.count(e.burst.requests)} ask at once, as clients of a benchmark begin: TTFT "
        f"{units.seconds(e.burst.mean)} on average, {units.seconds(e.burst.last)} of the last"
    ]  # fmt: skip
    return Section("requests", headers, tuple(rows), right=tuple(range(1, len(columns) + 1)), lines=tuple(lines))


def _passes(e: InferenceEstimate) -> Section:
    lines = [
        f"prefill pass {units.seconds(e.prefill_s)}: {_parts(e.prefill_parts)}",
        f"decode step {units.seconds(e.decode_first_s)} at first, {units.seconds(e.decode_last_s)} at last, "
        f"half way {units.seconds(e.decode_mean_s)}: {_parts(e.decode_parts)}",
        f"no step is faster than {units.seconds(e.read_bound_s)}: weights and cache read once; no prefill pass than "
        f"{units.seconds(e.prefill_bound_s)}: peak FLOP/s and bandwidth",
        *(
            f"validated error of {word}: {error(told)}, {sentence(told)}" if told.exact else f"{word}: {sentence(told)}"
            for word, metric in (("TTFT", "ttft"), ("TPOT", "tpot"), ("latency", "latency"))
            if (told := of_metric(e.confidence, metric)) is not None
        ),
    ]
    return Section("", lines=tuple(lines))


def _parts(parts: tuple[tuple[str, float], ...]) -> str:
    total = sum(seconds for _, seconds in parts) or 1.0
    return ", ".join(f"{name} {units.percent(seconds / total)}" for name, seconds in parts[:6])


def _operators(name: str, ops: tuple[Share, ...], whole: bool) -> Section:
    total = sum(op.seconds for op in ops) or 1.0
    shown = ops if whole else ops[:OPERATORS]
    rows = tuple(
        (op.name, op.detail, units.count(op.calls), units.seconds(op.seconds), units.percent(op.seconds / total),
         units.plain(op.flops / op.nbytes) if op.nbytes else "-", op.bound)
        for op in shown
    )  # fmt: skip
    headers = ("dims", "calls", "time", "share", "FLOP/B", "bound by")
    return Section(f"{name}, by operator", headers, rows, right=(2, 3, 4, 5), flexible=(0, 1))
