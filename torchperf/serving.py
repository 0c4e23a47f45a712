"""An engine that serves many requests: its passes priced by the planner, batched continuously by the schedule room."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from .graph.cache import kv_bytes
from .graph.inference import Burst, Request, Served
from .inference_memory import element_bits
from .inference_planner import InferencePlanner
from .price.collective import collective
from .schedule import serving, serving_events
from .schedule.serving import Engine
from .schedule.serving_clients import burst

RATIO = 1.19  # between the sizes at which passes are priced; straight lines between
LENGTHS = 4  # lengths of the cache at which decode steps are priced, and as many parts between them


@dataclass(slots=True)
class PricedPasses:
    """Seconds of one attention-DP group's passes; the others do the same at the same time."""

    planner: InferencePlanner
    request: Request
    _decodes: dict[tuple[int, int], tuple[float, float]] = field(default_factory=dict)
    _prompts: dict[int, tuple[float, float]] = field(default_factory=dict)

    def decode(self, n: float, kv: float) -> float:
        """A step of n requests, `kv` cached tokens each."""
        return self._between_both(n, kv)[0]

    def mixed(self, tokens: int, before: int, n: float, kv: float) -> float:
        """`tokens` of a prompt behind `before`, with one token of n requests in the same pass.

        The products see all the tokens. Attention of the piece is what the whole prompt up to its end takes more than
        up to its start; attention of the requests is that of their decode step. With a pipeline the piece joins one of
        the micro-batches, and the round is longer by its time on the slowest stage.
        """
        new, prompts = self.request.input_len - self.request.known, 1.0
        if tokens > new:  # several prompts share the pass
            tokens_of, before, prompts = new, self.request.known, tokens / new
        else:
            tokens_of = tokens
        attention = prompts * (self._prompt(tokens_of + before)[1] - (self._prompt(before)[1] if before else 0.0))
        if n < 0.5:
            return self._prompt(tokens)[0] + attention
        step, own = self._between_both(n, kv)
        stages = self.planner.plan.pp
        if stages > 1:
            return step + (self._prompt(tokens)[0] + attention) / stages
        return self._prompt(tokens + round(n))[0] + attention + own + n * self.planner.serving.sequence

    def _between_both(self, n: float, kv: float) -> tuple[float, float]:
        """(seconds, its attention) between sizes and lengths that are priced."""
        low, high = self.request.input_len, max(self.request.total - 2, self.request.input_len)
        width = max((high - low) / LENGTHS, 1.0)
        place = min(max((kv - low) / width, 0.0), (high - low) / width)
        left = int(place)
        lengths = (low + round(left * width), min(low + round((left + 1) * width), high))
        part = place - left
        ends = [_between(n, lambda size, at=at: self._decode(size, at)) for at in lengths]  # type: ignore[misc]
        return (ends[0][0] + part * (ends[1][0] - ends[0][0]), ends[0][1] + part * (ends[1][1] - ends[0][1]))

    def _decode(self, n: int, kv: int) -> tuple[float, float]:
        if (n, kv) not in self._decodes:
            request, groups = self.request, self.planner.plan.attention_dp
            low, high = request.input_len, max(request.total - 2, request.input_len)
            step = self.planner.curve(n * groups, low, high).at(kv)
            seconds = self.planner.decoding(n * groups, kv, request)
            self._decodes[n, kv] = seconds, step.attention
        return self._decodes[n, kv]

    def _prompt(self, tokens: int) -> tuple[float, float]:
        """(all but attention, attention) of a prompt of so many tokens."""
        return _between(max(tokens, 2), self._whole)

    def _whole(self, tokens: int) -> tuple[float, float]:
        """Of one prompt; beyond the positions of the model several make up the tokens, attention as their square."""
        if tokens not in self._prompts:
            groups = self.planner.plan.attention_dp
            limit = dict(self.planner.bind("prefill", {"batch": 1, "seq": 2}).facts.limits).get("seq")
            count = 1 if limit is None else -(-tokens // limit)
            found = self.planner.prefill(groups * count, max(tokens // count, 2))
            attention = count * found.attention
            self._prompts[tokens] = found.seconds - found.attention, attention
        return self._prompts[tokens]


def _between(size: float, of: Callable[[int], tuple[float, float]]) -> tuple[float, float]:
    """`of` at `size`, on a straight line between the nearest nodes."""
    below, above = _nodes(size)
    low = of(below)
    if above == below:
        return low
    high, part = of(above), (size - below) / (above - below)
    return low[0] + part * (high[0] - low[0]), low[1] + part * (high[1] - low[1])


def _grid() -> list[int]:
    """1, 2, 3, 4, ... then each RATIO times the last, multiples of 8 from 64 on."""
    found = [1, 2, 3, 4, 5, 6, 7, 8]
    while found[-1] < 2**22:
        step = found[-1] * RATIO
        found.append(int(step) if step < 64 else max(round(step / 8) * 8, found[-1] + 8))
    return found


GRID = _grid()


def _nodes(size: float) -> tuple[int, int]:
    at = bisect_left(GRID, size)
    if GRID[at] == size or at == 0:
        return GRID[at], GRID[at]
    return GRID[at - 1], GRID[at]


def engine_of(planner: InferencePlanner, request: Request, budget: int) -> Engine:
    """One attention-DP group of the engine as the schedule room sees it."""
    passes = PricedPasses(planner, request)
    return Engine(passes.decode, passes.mixed, budget, planner.serving.chunked, planner.serving.request or 0.0)


@dataclass(frozen=True, slots=True)
class Continuous:
    """What is asked of an engine: so many requests at once, or arrivals a second; the answer and its check."""

    planner: InferencePlanner
    request: Request
    budget: int
    most: int  # requests that fit at once, of one engine

    def at_concurrency(self, concurrency: int) -> tuple[Served, Served, Burst]:
        """(steady state in closed form, the same by events, all of them at once) of requests on one engine."""
        engine, groups = engine_of(self.planner, self.request, self.budget), self.planner.plan.attention_dp
        own = max(min(concurrency, self.most) / groups, 1.0)
        closed = serving.steady(engine, self.request, own)
        whole = max(round(own), 1)
        first = burst(engine, self.request, whole)
        events = serving_events.closed_loop(engine, self.request, whole)
        return self._all(closed), self._all(events), replace(first, requests=whole * groups)

    def at_rate(self, rate: float) -> tuple[Served, Served]:
        """The same of requests that arrive at `rate` a second on one engine."""
        engine, groups = engine_of(self.planner, self.request, self.budget), self.planner.plan.attention_dp
        own = rate / groups
        closed = serving.at_rate(engine, self.request, own, max(self.most // groups, 1))
        return self._all(closed), self._all(serving_events.open_loop(engine, self.request, own))

    def disaggregated(self, concurrency: int, prefills: int, decodes: int) -> Served:
        """`concurrency` requests on `prefills` engines for prompts and `decodes` for tokens, all alike."""
        engine = engine_of(self.planner, self.request, self.budget)
        groups = self.planner.plan.attention_dp
        own = max(min(concurrency, self.most * decodes) / groups, 1.0)
        found = serving.disaggregated(engine, self.request, own, prefills, decodes, self.transfer())
        return self._all(found)

    def transfer(self) -> float:
        """Seconds in which a prompt's cache goes from rank to rank over the network; in the node, where it has none."""
        planner = self.planner
        facts = planner.bind("decode", {"batch": 1, "kv": max(self.request.input_len, 2)}).facts
        bits = element_bits(facts, planner.precision.kv)
        own = kv_bytes(facts, bits, 1, self.request.input_len, planner.plan.tp) / planner.plan.pp
        within = 2 if planner.system.scale_out is None else 1
        return collective("p2p", own, 2, planner.system, per_node=within).seconds

    def _all(self, one: Served) -> Served:
        groups = self.planner.plan.attention_dp
        return replace(
            one, tokens_per_s=one.tokens_per_s * groups, concurrency=one.concurrency * groups,
            decoding=one.decoding * groups, requests_per_s=one.requests_per_s * groups,
        )  # fmt: skip
