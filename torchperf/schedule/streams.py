"""One micro-batch on one device: a host that issues kernels, a compute stream, and a stream for each kind of peers.

A kernel starts when the host has issued it, its stream is free and what it reads is there. A collective that the
runtime overlaps runs on its own stream and holds back only its readers; any other runs in line with compute.

ring          context parallelism: keys and values go round beside the attention that they feed; its first step waits
              for nobody, its last for the last message
tp-pipelined  a gather or scatter of tensor parallelism runs in as many slices as there are ranks beside the product
              that reads or makes its tensor: the first slice (or the last) alone is exposed
ep            an exchange of experts' rows runs beside the kernels of another micro-batch: nothing waits for it, but
              the phase lasts as long as they do

A stream runs one collective at a time. While compute waits for a collective, what its stream runs is exposed; the rest
of a collective is hidden, so that both add up to its seconds. What is hidden slows compute by the runtime's share.

Blocks repeat: a block that meets the same relative state again takes the same time, so 126 layers cost what 3 cost.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from ..graph.graph import Graph
from ..graph.price import Prices
from ..graph.runtime import Runtime
from .stream_kernels import Kernel, kernels

Interval = tuple[float, float]


@dataclass(slots=True)
class Spent:
    """Seconds of one phase of one micro-batch.

    elapsed   from the start of its first kernel to the end of its last, waits included
    compute   kernels; `weight` is the part that only makes parameters' gradients
    exposed   axis -> seconds of collectives that compute waited for, or ran in line
    hidden    axis -> seconds of collectives beside compute
    launches  kernels that the host issued
    slowed    that compute lost beside collectives: the runtime's share of what is hidden
    """

    elapsed: float = 0.0
    compute: float = 0.0
    weight: float = 0.0
    exposed: dict[str, float] = field(default_factory=dict)
    hidden: dict[str, float] = field(default_factory=dict)
    launches: int = 0
    slowed: float = 0.0

    @property
    def apart(self) -> float:
        """Seconds of the part that a schedule may put off: what only makes parameters' gradients."""
        return min(self.weight, self.elapsed)

    def add(self, other: Spent) -> None:
        self.elapsed += other.elapsed
        self.compute += other.compute
        self.weight += other.weight
        self.launches += other.launches
        self.slowed += other.slowed
        for own, more in ((self.exposed, other.exposed), (self.hidden, other.hidden)):
            for axis, seconds in more.items():
                own[axis] = own.get(axis, 0.0) + seconds


class Event(NamedTuple):
    """One collective on the stream of its axis. Seconds."""

    axis: str
    name: str
    start: float
    end: float


class _Arrival(NamedTuple):
    """When a collective beside compute is done with a storage, and in how many slices it came (0: in one)."""

    end: float
    axis: str
    slices: int
    seconds: float


@dataclass(slots=True)
class _Clock:
    """Absolute times: when the host is free to issue, when compute is free, what streams still run, what is due.

    streams  axis -> what its stream has yet to run that no block has counted, in order
    pending  program storage -> its collective
    """

    host: float = 0.0
    compute: float = 0.0
    streams: dict[str, tuple[Interval, ...]] = field(default_factory=dict)
    pending: dict[int, _Arrival] = field(default_factory=dict)


class Run(NamedTuple):
    """One call of a block, in seconds from the start of its micro-batch; `events` from its own start."""

    phase: str
    start: float
    end: float
    events: tuple[Event, ...]


class _Walked(NamedTuple):
    """What a block took, the state behind it and its collectives; times are relative to its start."""

    spent: Spent
    after: _Clock
    events: tuple[Event, ...]


def micro_batch(
    graph: Graph, prices: Prices, runtime: Runtime, architecture: str = "", runs: list[Run] | None = None
) -> dict[str, Spent]:
    """Time of each phase of one micro-batch, in the order in which the program runs.

    runs   is given each call of a block
    """
    overlap = frozenset(runtime.training.overlap)
    launch, slowdown = runtime.launch.value, runtime.training.overlap_slowdown.value
    pace = runtime.training.slower(architecture) if graph.facts.mode == "train" else 1.0
    rows = [kernels(block, row, overlap, pace) for block, row in zip(graph.blocks, prices, strict=True)]
    clock = _Clock()
    known: dict[tuple[object, ...], _Walked] = {}
    phases: dict[str, Spent] = {}
    for segment in graph.segments:
        row = rows[segment.block]
        if not row:
            continue
        now = clock.compute
        waits = {slot: clock.pending[s] for slot, s in enumerate(segment.storages) if s in clock.pending}
        waits = {slot: due._replace(end=due.end - now) for slot, due in waits.items() if due.end > now}
        key = _key(segment.block, clock, waits, len(row) * launch)
        if key not in known:
            known[key] = _Walk(clock, waits).run(row, launch, slowdown)
        spent, after, events = known[key]
        clock.compute = now + after.compute
        clock.host += len(row) * launch
        clock.streams = {axis: tuple((now + a, now + b) for a, b in left) for axis, left in after.streams.items()}
        for slot, due in after.pending.items():
            clock.pending[segment.storages[slot]] = due._replace(end=now + due.end)
        phase = graph.blocks[segment.block].phase
        phases.setdefault(phase, Spent()).add(spent)
        if runs is not None:
            runs.append(Run(phase, now, clock.compute, events))
    if phases:
        _last(phases[next(reversed(phases))], clock, slowdown)
    return phases


def _last(last: Spent, clock: _Clock, slowdown: float) -> None:
    """What streams still run as compute ends, the last reduce-scatters: the phase waits for them all."""
    end, before = clock.compute, -1.0
    left = [(axis, a, b) for axis, spans in clock.streams.items() for a, b in spans]
    while end - before > 1e-12:  # what compute loses keeps it longer beside them, which costs it a share again
        before = end
        end = clock.compute + slowdown * sum(max(min(b, end) - a, 0.0) for _, a, b in left)
    for axis, a, b in left:
        waited = max(b - max(a, end), 0.0)
        _tally(last.exposed, axis, waited)
        _tally(last.hidden, axis, b - a - waited)
    last.slowed += end - clock.compute
    last.elapsed += max([end, *(b for _, _, b in left)]) - clock.compute


def _key(block: int, clock: _Clock, waits: dict[int, _Arrival], issue: float) -> tuple[object, ...]:
    """The state that a block meets, relative to compute; what cannot hold it back any more is left out."""
    now = clock.compute
    streams = tuple(
        (axis, *(round(t - now, 11) for span in left for t in span)) for axis, left in sorted(clock.streams.items())
    )
    ahead = max(clock.host - now, -issue)
    due = tuple(sorted((slot, round(d.end, 11), d.axis, d.slices, round(d.seconds, 11)) for slot, d in waits.items()))
    return (block, round(ahead, 11), streams, due)


class _Walk:
    """One block from the clock's state; times are relative to compute at its start."""

    def __init__(self, clock: _Clock, waits: dict[int, _Arrival]) -> None:
        now = clock.compute
        self.host, self.compute = clock.host - now, 0.0
        self.streams = {axis: [(a - now, b - now) for a, b in left] for axis, left in clock.streams.items()}
        self.waited: dict[str, float] = {}  # axis -> seconds of its stream's work that compute stood still for
        self.made: dict[int, float] = {}  # slot -> end of the kernel in line that wrote it
        self.arrives = waits  # slot -> the collective beside compute that fills it
        self.product: dict[int, float] = {}  # slot -> seconds of the product that made it; 0 where another kernel did
        self.spent = Spent()
        self.events: list[Event] = []

    def run(self, row: tuple[Kernel, ...], launch: float, slowdown: float) -> _Walked:
        for kernel in row:
            self.host += launch
            if kernel.axis and kernel.overlaps:
                self._beside(kernel)
            else:
                self._in_line(kernel)
        spent, end = self.spent, self.compute
        for axis, spans in self.streams.items():
            ran = sum(min(b, end) - a for a, b in spans if a < end) - self.waited.get(axis, 0.0)
            if ran > 1e-12:  # less is rounding
                _tally(spent.hidden, axis, ran)
        spent.launches = len(row)
        spent.slowed = slowdown * sum(spent.hidden.values())
        self.compute += spent.slowed
        spent.elapsed = self.compute
        left = {axis: tuple((max(a, end), b) for a, b in spans if b > end) for axis, spans in self.streams.items()}
        pending = {slot: due for slot, due in self.arrives.items() if due.end > self.compute}
        after = _Clock(0.0, self.compute, {axis: spans for axis, spans in left.items() if spans}, pending)
        return _Walked(spent, after, tuple(self.events))

    def _beside(self, kernel: Kernel) -> None:
        made = max((self.made.get(slot, 0.0) for slot in kernel.reads), default=0.0)
        known = [self.arrives[slot].end for slot in kernel.reads if slot in self.arrives]
        free = max(self.host, self._free(kernel.axis), 0.0, *known)
        maker = max((self.product.get(slot, 0.0) for slot in kernel.reads), default=0.0)
        if kernel.slices and maker:  # scattered slice by slice as the product makes them
            start = max(free, made - maker * (1 - 1 / kernel.slices))
            end = max(start + kernel.seconds, made + kernel.seconds / kernel.slices)
        else:
            end = max(free, made) + kernel.seconds
        self._occupy(kernel, end)
        if kernel.axis == "ep":
            return
        for slot in kernel.writes:
            self.arrives[slot] = _Arrival(end, kernel.axis, kernel.slices, kernel.seconds)

    def _in_line(self, kernel: Kernel) -> None:
        start = max(self.host, self.compute)
        if kernel.axis:  # after what its peers still exchange
            start = self._wait(kernel.axis, start, self._free(kernel.axis))
        late = [self.arrives[slot] for slot in kernel.reads if slot in self.arrives and self.arrives[slot].end > start]
        last = max(late, default=None)
        if kernel.cast and last and last.slices:
            self._cast(kernel, start, last)
            return
        steps = kernel.ring
        if last and last.slices and kernel.product and not steps:
            steps = last.slices
            start = self._wait(last.axis, start, last.end - last.seconds * (1 - 1 / steps))  # for the first slice
        elif not steps:
            for due in sorted(late):
                start = self._wait(due.axis, start, due.end)
        end = start + kernel.seconds
        if kernel.axis:
            self._occupy(kernel, end)
            _tally(self.waited, kernel.axis, kernel.seconds)
            _tally(self.spent.exposed, kernel.axis, kernel.seconds)
        else:
            self.spent.compute += kernel.seconds
            self.spent.weight += kernel.seconds if kernel.weight else 0.0
        if last and steps:
            held = last.end + kernel.seconds / steps - end
            if held > 0:
                self._wait(last.axis, last.end - held, last.end)
                end += held
        self.compute = end
        for slot in kernel.writes:
            self.made[slot] = end
            self.product[slot] = kernel.seconds if kernel.product else 0.0
            self.arrives.pop(slot, None)

    def _cast(self, kernel: Kernel, start: float, source: _Arrival) -> None:
        """A cast of what a sliced gather brings: it takes its time now, its result is there a slice after the last."""
        self.compute = start + kernel.seconds
        self.spent.compute += kernel.seconds
        for slot in kernel.writes:
            self.arrives[slot] = source._replace(end=source.end + kernel.seconds / source.slices)

    def _free(self, axis: str) -> float:
        """When a stream has run all that was given to it."""
        spans = self.streams.get(axis)
        return spans[-1][1] if spans else 0.0

    def _occupy(self, kernel: Kernel, end: float) -> None:
        spans, start = self.streams.setdefault(kernel.axis, []), end - kernel.seconds
        self.events.append(Event(kernel.axis, kernel.name, start, end))
        if spans and abs(spans[-1][1] - start) < 1e-12:
            spans[-1] = (spans[-1][0], end)
        else:
            spans.append((start, end))

    def _wait(self, axis: str, start: float, end: float) -> float:
        """Compute stands still until `end`: what the stream runs meanwhile is exposed. When compute goes on."""
        seconds = 0.0
        for a, b in reversed(self.streams.get(axis, ())):
            if b <= start:
                break
            seconds += max(min(b, end) - max(a, start), 0.0)
        if seconds:
            _tally(self.waited, axis, seconds)
            _tally(self.spent.exposed, axis, seconds)
        return max(start, end)


def _tally(found: dict[str, float], key: str, seconds: float) -> None:
    found[key] = found.get(key, 0.0) + seconds
