"""Suggestions as sentences: what to add, whether it fits then, and what it costs or saves beside the estimate."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from torchperf.graph.estimate import Estimate
from torchperf.graph.inference import InferenceEstimate
from torchperf.graph.suggestion import ServingSuggestion, Suggestion

from . import units
from .memory import loss_hint

LEAST = 0.001  # share of time below which two steps are told as equal
LOSS = 0.02  # share of memory from which logits and loss are told of where a step does not fit


def suggested(e: Estimate) -> tuple[str, ...]:
    """The suggestions, the best first, then what is said beside them."""
    return (*(sentence(e, s) for s in e.suggestions), *advice(e))


def advice(e: Estimate) -> tuple[str, ...]:
    """The hint about logits, where no suggestion has its figures, and the estimate's own."""
    priced = any(s.change == "fused loss" for s in e.suggestions)
    hint = None if priced else loss_hint(e)
    return (hint, *e.advice) if hint else e.advice


def sentence(e: Estimate, s: Suggestion) -> str:
    """`under FLAGS it fits: 47.31 GiB (31.70 GiB less), 29.7 % more time a token`."""
    if s.change == "fused loss":
        hint = loss_hint(e) or "a fused or chunked cross-entropy never holds logits and loss whole"
        return f"{hint}; without them it {_would(s.verdict)}: {_bytes(e, s)}"
    loss = ""
    if s.verdict == "does not fit" and s.logits_loss_bytes > LOSS * s.device_bytes:
        loss = f", {units.gib(s.logits_loss_bytes)} GiB of them logits and loss: a fused loss saves these"
    return f"under `{s.flags}` it {_would(s.verdict, e.verdict)}: {_bytes(e, s)}{loss}; {_time(e, s)}"


def _would(verdict: str, now: str = "does not fit") -> str:
    words = {"fits": "fits", "tight": "fits tightly"}
    return words.get(verdict, "does not fit either" if now == "does not fit" else "does not fit")


def _bytes(e: Estimate, s: Suggestion) -> str:
    saved = e.memory.device - s.device_bytes
    if abs(saved) < 0.01 * units.GIB:
        return f"{units.gib(s.device_bytes)} GiB, as now"
    return f"{units.gib(s.device_bytes)} GiB, {units.gib(abs(saved))} {'less' if saved > 0 else 'more'}"


def _time(e: Estimate, s: Suggestion) -> str:
    """Time a token of one GPU against the estimate's, and the step where its size or its GPUs are others."""
    if s.step_time_s is None or not s.tokens_per_s_per_gpu:
        return ""
    change = e.tokens_per_s / s.tokens_per_s_per_gpu - 1
    of = "GPU time" if s.num_gpus != e.num_gpus else "time"
    told = _change(change, f"{of} a token")
    if s.tokens_per_step != e.tokens_per_step or s.num_gpus != e.num_gpus:
        told += f", a step of {units.count(s.tokens_per_step)} tokens in {units.seconds(s.step_time_s)}"
    return told


def _change(change: float, of: str) -> str:
    if abs(change) < LEAST:
        return f"the same {of}"
    return f"{units.percent(abs(change))} {'more' if change > 0 else 'less'} {of}"


def suggestion_dict(e: Estimate, s: Suggestion) -> dict[str, Any]:
    """One suggestion, units in its keys, with its sentence."""
    return {"text": sentence(e, s), **asdict(s)}


def serving_sentence(e: InferenceEstimate, s: ServingSuggestion) -> str:
    """`under FLAGS it fits: TPOT 4.10 ms, 47.2 % less, 1,900 tokens/s/GPU, 89 % more; ...`."""
    tpot = units.seconds(s.tpot_s) + (f" ({_signed(s.tpot_s / e.served.tpot - 1)})" if e.served.tpot else "")
    rate = f"{units.rate(s.tokens_per_s_per_gpu)} ({_signed(s.tokens_per_s_per_gpu / e.tokens_per_s_per_gpu - 1)})"
    held = f"{units.count(s.max_concurrency)} requests at once in an engine"
    return f"under `{s.flags}` it {_would(s.verdict, e.verdict)}: TPOT {tpot}, tokens/s/GPU {rate}, {held}"


def _signed(change: float) -> str:
    return f"{100 * change:+.1f} %"


def serving_suggestion_dict(e: InferenceEstimate, s: ServingSuggestion) -> dict[str, Any]:
    """One suggestion, units in its keys, with its sentence."""
    return {"text": serving_sentence(e, s), **asdict(s)}
