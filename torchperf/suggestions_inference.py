"""What to change in serving: other loads, formats and spreads of the same model, each priced as the estimate itself is.

Where it does not fit, those that make it fit; else those that give more tokens a GPU, or each user's sooner.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace

from .graph.errors import TorchperfError
from .graph.inference import InferenceEstimate, InferencePlan, InferencePrecision
from .graph.suggestion import ServingSuggestion

MOST = 4
GAIN = 0.02  # share of throughput or of time per token from which a change is worth a line


@dataclass(frozen=True, slots=True)
class Serving:
    """What of serving may change.

    concurrency   None: a static `batch`, or where `open_loop` arrivals, which no other load replaces
    counted       whether the GPUs in all were given
    """

    precision: InferencePrecision
    plan: InferencePlan
    batch: int
    concurrency: int | None
    open_loop: bool = False
    counted: bool = False

    def flags(self, asked: Serving) -> str:
        """What to add to the command that asked for `asked`."""
        pairs = (
            ("--tp", self.plan.tp, asked.plan.tp),
            ("--ep", self.plan.ep, asked.plan.ep),
            ("--num-gpus", self.counted and self.plan.num_gpus, self.counted and asked.plan.num_gpus),
            ("--precision", self.precision.weights, asked.precision.weights),
            ("--kv-precision", self.precision.kv, asked.precision.kv),
            ("--batch", self.batch, asked.batch),
            ("--concurrency", self.concurrency, asked.concurrency),
        )
        return " ".join(f"{flag} {value}" for flag, value, before in pairs if value != before)


Priced = Callable[[Serving], InferenceEstimate]  # raises TorchperfError


def serving_suggestions(e: InferenceEstimate, asked: Serving, price: Priced) -> tuple[ServingSuggestion, ...]:
    """At most MOST of them, the best first."""
    found = []
    for name, way in _ways(asked, e.verdict == "does not fit"):
        with suppress(TorchperfError):  # a way that cannot be built is none to suggest
            found.append(_told(name, way.flags(asked), price(way)))
    legal = [s for s in found if s.verdict != "does not fit"]
    if e.verdict == "does not fit":
        return tuple(_most_tokens(legal)[:MOST])
    more = [s for s in legal if s.tokens_per_s_per_gpu > (1 + GAIN) * e.tokens_per_s_per_gpu]
    sooner = [s for s in legal if s not in more and s.tpot_s < (1 - GAIN) * e.served.tpot]
    room = [s for s in legal if s not in more + sooner and e.verdict == "tight" and s.verdict == "fits"]
    return (*_most_tokens(more), *sorted(sooner, key=lambda s: s.tpot_s), *_most_tokens(room))[:MOST]


def _told(name: str, flags: str, e: InferenceEstimate) -> ServingSuggestion:
    return ServingSuggestion(
        flags, name, e.num_gpus, e.verdict, e.served.ttft, e.served.tpot, e.tokens_per_s_per_gpu, e.max_concurrency
    )


def _most_tokens(found: Iterable[ServingSuggestion]) -> list[ServingSuggestion]:
    return sorted(found, key=lambda s: -s.tokens_per_s_per_gpu)


def _ways(asked: Serving, too_large: bool) -> list[tuple[str, Serving]]:
    """(what changes, the way): formats, the split, and where it fits the load."""
    ways = []
    for weights in ("fp8", "int4"):
        if asked.precision.weights in ("bf16", "fp16", "fp8") and asked.precision.weights != weights:
            ways.append((f"{weights} weights", replace(asked, precision=replace(asked.precision, weights=weights))))
    if asked.precision.kv in ("bf16", "fp16"):
        ways.append(("fp8 cache", replace(asked, precision=replace(asked.precision, kv="fp8"))))
    ways += [(f"tp {word}", way) for word, up in (("x 2", True), ("/ 2", False)) if (way := _split(asked, up))]
    if not too_large and not asked.open_loop:
        load = {"concurrency": asked.concurrency * 2} if asked.concurrency else {"batch": asked.batch * 2}
        ways.append(("load x 2", replace(asked, **load)))  # type: ignore[arg-type]
    if too_large and not asked.concurrency and asked.batch > 1:
        ways.append(("load / 2", replace(asked, batch=asked.batch // 2)))
    return ways


def _split(asked: Serving, up: bool) -> Serving | None:
    """Twice or half as many GPUs to a layer: engines in all as they are."""
    plan = asked.plan
    if not up and plan.tp % 2:
        return None
    tp = plan.tp * 2 if up else plan.tp // 2
    ep = tp if plan.attention_dp == 1 and plan.ep == plan.tp > 1 else plan.ep
    return replace(asked, plan=replace(plan, tp=tp, ep=ep))
