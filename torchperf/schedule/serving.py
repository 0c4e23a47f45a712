"""Continuous batching in its steady state, in closed form.

N requests are on an engine at any time; each needs k passes for its prompt and d = (O - 1) / t steps of t tokens.

chunked       a pass carries a piece of a prompt together with one token of every decoding request: M seconds; a pass
              without a prompt takes D. Of the passes in which a request decodes (N - 1) k carry another's prompt:
                  latency = N k M + max(d - (N - 1) k, 0) D
              where d < (N - 1) k every pass carries prompts, which share passes up to the budget; beyond it
                  latency = N (new tokens) / budget M
prompts first a pass of prompts alone, P seconds, holds up every decoding request; N / d requests are answered a step,
              and their next prompts go together, g of them, as far as the budget holds:
                  latency = N / g P(g) + d D

Arrivals at a rate R: Little's law, N = R latency(N); prompts wait for the pass under way and for each other, as in a
queue with one server, random arrivals and a fixed time of service: r s / (2 (1 - r)), s = k M or P, r = R s.

ignores   preemption, answers of different lengths
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from ..graph.errors import TorchperfError
from ..graph.inference import Request, Served

ROUNDS = 12
FRONTS = 2  # rounds in which the share of the time in front of the engine settles


@dataclass(frozen=True, slots=True)
class Engine:
    """What passes of an engine take, in seconds.

    decode    (requests, mean kv) -> a step
    mixed     (prompt tokens, those before them, decoding requests, their mean kv) -> a pass of both
    budget    tokens of a pass
    chunked   prompts are cut and share passes with decodes
    front     of a request before the engine sees it, and behind: tokenised, queued, sent
    """

    decode: Callable[[float, float], float]
    mixed: Callable[[int, int, float, float], float]
    budget: int
    chunked: bool
    front: float = 0.0


def steady(engine: Engine, request: Request, concurrency: float) -> Served:
    """`concurrency` requests at any time, those in front of the engine included."""
    if concurrency < 1:
        return _alone(engine, request, concurrency)
    found = _inside(engine, request, concurrency)
    if not engine.front:
        return found
    for _ in range(FRONTS):
        share = found.latency / (found.latency + engine.front)
        found = _inside(engine, request, max(concurrency * share, 1.0))
    ttft, latency = found.ttft + engine.front, found.latency + engine.front
    rate = concurrency / latency
    return replace(
        found, ttft=ttft, latency=latency, concurrency=concurrency, requests_per_s=rate,
        tokens_per_s=rate * request.output_len,
    )  # fmt: skip


def _inside(engine: Engine, request: Request, concurrency: float) -> Served:
    """`concurrency` requests on the engine itself."""
    mean_kv = request.input_len + request.output_len / 2
    steps = (request.output_len - 1) / request.tokens_per_step
    if not engine.chunked:
        return _prompts_first(engine, request, concurrency, steps, mean_kv)
    decoding = concurrency
    for _ in range(ROUNDS):
        passes, mixed, total = _chunked(engine, request, concurrency, decoding, mean_kv)
        then = concurrency * steps / total
        if abs(then - decoding) < 0.01 * max(decoding, 1):
            break
        decoding = (decoding + then) / 2
    others = (concurrency - 1) * passes
    if steps >= others:
        alone = engine.decode(max(decoding, 1.0), mean_kv) if steps else 0.0
        first, rest, busy = passes * mixed, others * mixed + (steps - others) * alone, concurrency * passes * mixed
    else:
        first, rest, busy = (total - steps) * mixed, steps * mixed, total * mixed
    return _served(request, concurrency, first, rest, mixed, decoding, busy)


def _chunked(
    engine: Engine, request: Request, concurrency: float, decoding: float, mean_kv: float
) -> tuple[int, float, float]:
    """(passes of a prompt alone, seconds of a pass with prompts, passes between two answers to one user).

    Where N k passes are more than a request stays for, d + k, prompts share passes: N new / (d + k) tokens each, and
    where even that is more than a pass takes, as many passes as N prompts fill.
    """
    steps = (request.output_len - 1) / request.tokens_per_step
    passes, mixed = pieces(engine, request, decoding, mean_kv)
    total = passes + steps
    if concurrency * passes <= total:
        return passes, mixed, total
    new, known = request.input_len - request.known, request.known
    room = engine.budget - round(decoding)
    tokens = min(max(round(concurrency * new / total), 1), room)
    last = known + max(new - tokens, 0)
    mixed = (engine.mixed(tokens, known, decoding, mean_kv) + engine.mixed(tokens, last, decoding, mean_kv)) / 2
    return passes, mixed, max(total, concurrency * new / room)


def _alone(engine: Engine, request: Request, concurrency: float) -> Served:
    """Less than one request at a time, on average: it has the engine for itself."""
    one = steady(engine, request, 1.0)
    first, rest = one.ttft, one.latency - one.ttft
    busy = concurrency * (first - engine.front)
    return _served(request, concurrency, first, rest, one.itl_worst, one.decoding * concurrency, busy)


def _prompts_first(engine: Engine, request: Request, n: float, steps: float, mean_kv: float) -> Served:
    new = request.input_len - request.known
    most = max(engine.budget // new, 1)
    group = min(max(n / steps, 1.0), most, n) if steps else min(most, n)
    prompt = engine.mixed(round(group * new), request.known, 0.0, mean_kv)
    rest = steps * engine.decode(n, mean_kv) + (n / group - 1) * prompt if steps else 0.0
    worst = prompt + engine.decode(n, mean_kv)
    return _served(request, n, prompt, rest, worst, n, n / group * prompt)


def pieces(engine: Engine, request: Request, decoding: float, mean_kv: float) -> tuple[int, float]:
    """(passes of one prompt, mean seconds of such a pass with `decoding` requests beside it)."""
    new, known = request.input_len - request.known, request.known
    room = room_of(engine, decoding)
    passes = -(-new // room)
    rest = new - room * (passes - 1)
    total = engine.mixed(rest, known + new - rest, decoding, mean_kv)
    if passes > 1:
        first = engine.mixed(room, known, decoding, mean_kv)
        last = engine.mixed(room, known + room * (passes - 2), decoding, mean_kv)
        total += (passes - 1) * (first + last) / 2
    return passes, total / passes


def room_of(engine: Engine, decoding: float) -> int:
    """Tokens of prompts in a pass with so many decodes. Raises TorchperfError where none are left."""
    room = engine.budget - round(decoding)
    if room < 1:
        raise TorchperfError(
            f"{decoding:.0f} requests decode and leave no room for prompts in passes of {engine.budget} tokens",
            hint="give a larger `--max-batched-tokens`, or a smaller `--concurrency`",
        )
    return room


def at_rate(engine: Engine, request: Request, rate: float, most: int) -> Served:
    """Requests that arrive at `rate` a second, at random; at most `most` fit. Raises TorchperfError if overloaded."""
    front, engine = engine.front, replace(engine, front=0.0)
    known: dict[int, Served] = {}

    def held(n: int) -> Served:
        if n not in known:
            known[n] = steady(engine, request, n)
        return known[n]

    low, high = 0, 1
    while held(high).requests_per_s < rate:
        if high >= most or (high > 8 and held(high).requests_per_s < 1.01 * held(high // 2).requests_per_s):
            best = max(known.values(), key=lambda s: s.requests_per_s)
            raise TorchperfError(
                f"`{rate:g}` requests a second are more than one engine serves: {best.requests_per_s:.3g}",
                facts=[("reached with", f"{best.concurrency:.0f} requests at once, of {most} that fit")],
                hint="give more engines (`--num-gpus`), or a lower rate",
            )
        low, high = high, min(high * 2, most)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if held(middle).requests_per_s >= rate else (middle, high)
    found = _arriving(request, rate, held(low) if low else None, held(high))
    latency = found.latency + front
    return replace(found, ttft=found.ttft + front, latency=latency, concurrency=rate * latency)


def _arriving(request: Request, rate: float, below: Served | None, above: Served) -> Served:
    """Between the whole numbers of requests on either side of the rate, with the queue before the prompts."""
    if below is None:
        share, start = rate / above.requests_per_s, above
        concurrency = share
    else:
        span = above.requests_per_s - below.requests_per_s
        share = (rate - below.requests_per_s) / span if span > 0 else 1.0
        start = below
        concurrency = below.concurrency + share * (above.concurrency - below.concurrency)
    weight = 0.0 if below is None else share
    tpot = start.tpot + weight * (above.tpot - start.tpot)
    service = start.ttft + weight * (above.ttft - start.ttft)
    busy = min(rate * service, 0.99)
    wait = busy * service / (2 * (1 - busy)) + (1 - busy) * min(concurrency, 1.0) * tpot / 2
    first = service + wait
    latency = first + tpot * (request.output_len - 1)
    decoding = rate * tpot * (request.output_len - 1)
    return Served(
        first, tpot, latency, above.itl_worst, rate * request.output_len, rate * latency, decoding, busy, rate
    )  # fmt: skip


def _served(
    request: Request, n: float, first: float, rest: float, worst: float, decoding: float, prompts: float
) -> Served:
    latency = first + rest
    tpot = rest / (request.output_len - 1) if request.output_len > 1 else 0.0
    requests = n / latency
    return Served(
        first, tpot, latency, worst, requests * request.output_len, n, decoding, min(prompts / latency, 1.0), requests
    )  # fmt: skip


def disaggregated(
    engine: Engine, request: Request, concurrency: float, prefills: int, decodes: int, transfer: float
) -> Served:
    """Prompts on `prefills` engines, decodes on `decodes` others; the cache of a prompt moves in `transfer` seconds.

    latency = max(front + P + transfer + d D(n), N P / prefills), n = decoding requests of one engine. Rates are of all
    engines.
    """
    steps = (request.output_len - 1) / request.tokens_per_step
    mean_kv = request.input_len + request.output_len / 2
    new = request.input_len - request.known
    prompt = engine.mixed(new, request.known, 0.0, mean_kv)
    decoding = concurrency / decodes
    rest = first = 0.0
    for _ in range(ROUNDS):
        rest = steps * engine.decode(max(decoding, 1.0), mean_kv) if steps else 0.0
        latency = max(engine.front + prompt + transfer + rest, concurrency * prompt / prefills)
        first = latency - rest
        then = concurrency * rest / latency / decodes
        if abs(then - decoding) < 0.01 * max(decoding, 1):
            break
        decoding = (decoding + then) / 2
    worst = rest / steps if steps else 0.0
    busy = min(concurrency * prompt / (prefills * (first + rest)), 1.0)
    found = _served(request, concurrency, first, rest, worst, decoding * decodes, 0.0)
    return Served(
        found.ttft, found.tpot, found.latency, found.itl_worst, found.tokens_per_s, found.concurrency, found.decoding,
        busy, found.requests_per_s,
    )  # fmt: skip
