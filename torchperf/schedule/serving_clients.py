"""Clients who all ask at the same moment, as benchmark tools do: the first wave of prompts, and the waves behind it.

burst     N prompts wait for an idle engine. A pass takes `budget` tokens less one of each request that decodes, so
          prompt i has its first token behind the passes that hold the prompts before it:
              chunked        the passes that it takes to fill i prompts
              prompts first  passes of the whole prompts that fit, one at least, without decodes
waves     each client asks again when answered. Answers of one length keep together for good the prompts of a pass;
          where prompts go first and hold up every decode, all of them. Lengths that differ spread them out, and each
          prompt meets the steady state of schedule/serving.py.

ignores   the passes in which few requests decode at the end of a benchmark
"""

from __future__ import annotations

from dataclasses import replace

from ..graph.inference import Burst, Request, Served
from .serving import Engine, room_of, steady

PASSES = 64  # priced of a wave; what lies between takes as long as its neighbours


def burst(engine: Engine, request: Request, count: int) -> Burst:
    """`count` prompts at once on an idle engine. Raises TorchperfError where decodes leave no room for prompts."""
    new = request.input_len - request.known
    if not engine.chunked:
        return _prompts_first(engine, request, count)
    now = mean = done = 0.0  # tokens done
    total = float(count * new)
    stride = max(1, round(total / room_of(engine, count) / PASSES))
    while done < total:
        finished = int(done / new)
        tokens = min(room_of(engine, finished), total - done)
        before = request.known + int(done - finished * new)
        seconds = engine.mixed(max(round(tokens), 1), before, finished, request.input_len)
        repeats = min(stride, max(1, int((total - done) / tokens)))
        for _ in range(repeats):
            now += seconds
            done += tokens
            answered = int(done / new + 1e-9) - finished
            mean += answered * now
            finished += answered
    return Burst(count, engine.front + mean / count, engine.front + now)


def _prompts_first(engine: Engine, request: Request, count: int) -> Burst:
    new = request.input_len - request.known
    group = min(max(engine.budget // new, 1), count)
    passes, rest = divmod(count, group)
    one = engine.mixed(group * new, request.known, 0.0, request.input_len)
    last = passes * one + (engine.mixed(rest * new, request.known, 0.0, request.input_len) if rest else 0.0)
    mean = (group * one * passes * (passes + 1) / 2 + rest * last) / count
    return Burst(count, engine.front + mean, engine.front + last)


def clients(engine: Engine, request: Request, concurrency: int, requests: int, *, alike: bool) -> Served:
    """What `concurrency` clients see on average of `requests` requests, which they begin together.

    alike   all requests have the same lengths
    """
    found = steady(engine, request, concurrency)
    later = found.ttft
    if alike:
        together = concurrency
        if engine.chunked:
            together = max(room_of(engine, found.decoding) // (request.input_len - request.known), 1)
        later = max(later, burst(engine, request, min(together, concurrency)).mean)
    first = min(concurrency, requests) / requests
    ttft = first * burst(engine, request, concurrency).mean + (1 - first) * later
    return replace(found, ttft=ttft, latency=found.latency - found.ttft + ttft)
