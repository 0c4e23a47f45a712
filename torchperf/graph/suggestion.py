"""The nouns of advice: one change of an estimate, and what the estimate is with it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A training step under another plan. Seconds and bytes.

    flags              to add to the command; "" where no flag does it
    change             the same as a key: recompute, tp, pp, ...; `fused loss` is the model's own to change
    step_time_s        None where only memory was worked out
    device_bytes       of the most loaded device; `logits_loss_bytes` of them logits and loss
    tokens_per_step    of all devices
    """

    flags: str
    change: str
    num_gpus: int
    verdict: str
    device_bytes: int
    logits_loss_bytes: int
    step_time_s: float | None = None
    tokens_per_step: int = 0
    tokens_per_s_per_gpu: float | None = None


@dataclass(frozen=True, slots=True)
class ServingSuggestion:
    """Serving another way. `max_concurrency`: requests of this size at once in one engine."""

    flags: str
    change: str
    num_gpus: int
    verdict: str
    ttft_s: float
    tpot_s: float
    tokens_per_s_per_gpu: float
    max_concurrency: int
