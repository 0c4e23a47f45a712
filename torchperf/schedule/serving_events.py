"""Continuous batching pass by pass: the slow, plain twin of serving.py.

Every pass takes one token of each decoding request; the rest of its budget goes to prompts in the order of arrival
(chunked), or the prompts that wait go first, whole ones up to the budget and one at least, in passes of their own.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass

from ..graph.inference import Request, Served
from .serving import Engine


@dataclass(slots=True)
class _Live:
    """A request on its way: its lengths, prompt tokens done, output tokens made (a mean with drafts), and when."""

    arrived: float
    input_len: int
    output_len: int
    done: int
    made: float = 0.0
    first: float = -1.0
    last: float = -1.0
    worst: float = 0.0


def closed_loop(engine: Engine, request: Request, concurrency: int, cycles: int = 3) -> Served:
    """`concurrency` users, each of whom asks again when answered; they start spread evenly over an answer."""
    run = _Run(engine, request)
    for i in range(concurrency):
        made = max(1.0, request.output_len * (i + 0.5) / concurrency)
        run.running.append(_Live(0.0, request.input_len, request.output_len, request.input_len, made, 0.0, 0.0))
    target = concurrency * cycles
    run.renew = target
    while len(run.finished) < target:
        run.step()
    return run.served(skip=concurrency)


def clients(
    engine: Engine, request: Request, concurrency: int, requests: int, shortest: float = 1.0, seed: int = 1
) -> Served:
    """`concurrency` clients who begin at once and ask `requests` times in all; means over all of them.

    shortest   lengths are even between this share of the longest and it, their mean as the request's
    """
    run = _Run(engine, request, random.Random(seed), shortest)
    run.renew = requests - concurrency
    run.waiting.extend(run.new() for _ in range(concurrency))
    while len(run.finished) < requests:
        run.step()
    return run.served(skip=0)


def open_loop(engine: Engine, request: Request, rate: float, requests: int = 300, seed: int = 1) -> Served:
    """Requests that arrive at random (Poisson) at `rate` a second; the first fifth is left out of the means."""
    run, dice, now = _Run(engine, request), random.Random(seed), 0.0
    for _ in range(requests):
        now += dice.expovariate(rate)
        run.coming.append(run.new(now))
    while len(run.finished) < requests:
        run.step()
    return run.served(skip=requests // 5)


class _Run:
    """The clock and the requests of one engine."""

    def __init__(
        self, engine: Engine, request: Request, dice: random.Random | None = None, shortest: float = 1.0
    ) -> None:
        self.engine, self.request, self.now, self.dice, self.shortest = engine, request, 0.0, dice, shortest
        self.coming: deque[_Live] = deque()
        self.waiting: deque[_Live] = deque()
        self.running: list[_Live] = []
        self.finished: list[_Live] = []
        self.renew = 0  # requests still to come from those who are answered
        self.area = self.prompt_time = self.decoding = 0.0

    def new(self, arrived: float = 0.0) -> _Live:
        """A request of the lengths that are asked for, or of random ones around them."""
        request = self.request
        if self.dice is None:
            return _Live(arrived, request.input_len, request.output_len, request.known)
        longest = 2 / (1 + self.shortest)
        inputs, outputs = (
            max(1, round(length * longest * self.dice.uniform(self.shortest, 1)))
            for length in (request.input_len, request.output_len)
        )
        return _Live(arrived, inputs, outputs, min(request.known, inputs - 1))

    def step(self) -> None:
        """One pass."""
        while self.coming and self.coming[0].arrived <= self.now:
            self.waiting.append(self.coming.popleft())
        if not self.waiting and not self.running:
            self.now = self.coming[0].arrived
            return
        decoding = [] if self.waiting and not self.engine.chunked else list(self.running)
        taken = self._prompts(len(decoding))
        mean_kv = sum(live.input_len + live.made for live in decoding) / max(len(decoding), 1)
        if taken:
            seconds = self._mixed(taken, len(decoding), mean_kv)
            self.prompt_time += seconds
        else:
            seconds = self.engine.decode(len(decoding), mean_kv)
        self.now += seconds
        self.area += seconds * (len(self.waiting) + len(self.running))
        self.decoding += seconds * len(self.running)
        for live, tokens in taken:
            live.done += tokens
            if live.done >= live.input_len:
                self.waiting.remove(live)
                live.made, live.first, live.last = 1.0, self.now, self.now
                self.running.append(live)
                self._answered(live)
        for live in decoding:
            live.made += self.request.tokens_per_step
            live.worst = max(live.worst, self.now - live.last)
            live.last = self.now
            self._answered(live)

    def _prompts(self, decoding: int) -> list[tuple[_Live, int]]:
        room = self.engine.budget - decoding
        taken: list[tuple[_Live, int]] = []
        for live in self.waiting:
            tokens = live.input_len - live.done
            if self.engine.chunked:
                tokens = min(tokens, room)
            if tokens <= 0 or (taken and tokens > room):
                break
            taken.append((live, tokens))
            room -= tokens
        return taken

    def _mixed(self, taken: list[tuple[_Live, int]], decoding: int, mean_kv: float) -> float:
        """A pass with several prompts costs as one of all their tokens, behind what the first has cached."""
        return self.engine.mixed(sum(tokens for _, tokens in taken), taken[0][0].done, decoding, mean_kv)

    def _answered(self, live: _Live) -> None:
        if live.made >= live.output_len:
            self.running.remove(live)
            self.finished.append(live)
            if self.renew:
                self.renew -= 1
                self.coming.append(self.new(self.now + self.engine.front))

    def served(self, skip: int) -> Served:
        """Means over the requests that began after the first `skip` were answered."""
        request = self.request
        counted = [live for live in self.finished[skip:] if live.first > 0]
        start = self.finished[skip - 1].last if skip else 0.0
        n = len(counted)
        first = sum(live.first - live.arrived for live in counted) / n + self.engine.front
        latency = sum(live.last - live.arrived for live in counted) / n + self.engine.front
        tpot = (latency - first) / (request.output_len - 1) if request.output_len > 1 else 0.0
        rate = (len(self.finished) - skip) / (self.now - start)
        return Served(
            first, tpot, latency, max(live.worst for live in counted), rate * request.output_len,
            self.area / self.now, self.decoding / self.now, self.prompt_time / self.now, rate,
        )  # fmt: skip
