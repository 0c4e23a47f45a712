"""One micro-batch on one device: a host that issues kernels, a compute stream, and a stream for each kind of peers.

A kernel starts when the host has issued it, its stream is free and what it reads is there. A collective that the
runtime overlaps runs on its own stream and holds back only its readers; any other runs in line with compute.

ring          context parallelism: keys and values go round beside the attention that they feed; its first step waits
              for nobody, its last for the last message
tp-pipelined  a gather or scatter of tensor parallelism runs in as many slices as there are ranks beside the product
              that reads or makes its tensor: the first slice (or the last) alone is exposed
ep            an exchange of experts' rows runs beside the kernels of another micro-batch: nothing waits for it, but
              the phase lasts as long as they do

What is hidden slows compute by the runtime's share.

Blocks repeat: a block that meets the same relative state again takes the same time, so 126 layers cost what 3 cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..graph.graph import Block, Graph
from ..graph.price import Price, Prices
from ..graph.runtime import Runtime

SLICED = ("all_gather", "reduce_scatter")
PRODUCTS = ("aten.mm.", "aten.addmm.", "aten.bmm.", "aten._scaled_mm.", "aten._grouped_mm.")


@dataclass(slots=True)
class Spent:
    """Seconds of one phase of one micro-batch.

    elapsed   from the start of its first kernel to the end of its last, waits included
    compute   kernels; `weight` is the part that only makes parameters' gradients
    exposed   axis -> seconds that compute waited for its collectives, or ran them in line
    hidden    axis -> seconds of collectives beside compute
    launches  kernels that the host issued
    slowed    that compute lost beside collectives
    """

    elapsed: float = 0.0
    compute: float = 0.0
    weight: float = 0.0
    exposed: dict[str, float] = field(default_factory=dict)
    hidden: dict[str, float] = field(default_factory=dict)
    launches: int = 0
    slowed: float = 0.0

    def add(self, other: Spent) -> None:
        self.elapsed += other.elapsed
        self.compute += other.compute
        self.weight += other.weight
        self.launches += other.launches
        self.slowed += other.slowed
        for own, more in ((self.exposed, other.exposed), (self.hidden, other.hidden)):
            for axis, seconds in more.items():
                own[axis] = own.get(axis, 0.0) + seconds


@dataclass(frozen=True, slots=True)
class _Kernel:
    """One priced op, ready for the walk."""

    seconds: float
    axis: str  # "" for compute
    overlaps: bool
    ring: int  # steps of the ring that feeds this attention; 0
    slices: int  # of a collective that runs beside the product that reads or makes its tensor; 0
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    weight: bool
    product: bool
    cast: bool  # to few bits, slice by slice as its source arrives


def kernels(block: Block, prices: Sequence[Price], overlap: frozenset[str], pace: float = 1.0) -> tuple[_Kernel, ...]:
    """The kernels of a block that take time; `overlap` and `pace` as in Training."""
    found = []
    for op, price in zip(block.ops, prices, strict=True):
        if price.seconds <= 0.0:
            continue
        axis = op.attr("axis", "") if op.name.startswith("torchperf.") and op.attr("ranks") is not None else ""
        role = op.attr("role", "")
        pipelined = axis == "tp" and "tp-pipelined" in overlap and op.name.endswith(SLICED)
        if role == "fsdp":
            overlaps = ("weights" if "gather" in op.name else "gradients") in overlap
        else:
            overlaps = role == "ring" or pipelined or (axis in ("tp", "ep") and axis in overlap)
        found.append(
            _Kernel(
                price.seconds * (1.0 if axis else pace), str(axis), overlaps, int(op.attr("ring", 0)),
                int(op.attr("ranks", 0)) if pipelined else 0,
                tuple({v.slot for v in op.inputs}), tuple({v.slot for v in op.outputs}),
                any(block.storages[v.slot].kind == "grad" for v in op.outputs),
                op.name.startswith(PRODUCTS),
                any(one.name.startswith("torchperf.quantise") for one in op.parts or (op,)),
            )
        )  # fmt: skip
    return tuple(found)


@dataclass(slots=True)
class _Clock:
    """Absolute times: when the host is free to issue, when each stream is free, when a storage is there."""

    host: float = 0.0
    compute: float = 0.0
    streams: dict[str, float] = field(default_factory=dict)
    pending: dict[int, float] = field(default_factory=dict)  # program storage -> when its collective is done


def micro_batch(graph: Graph, prices: Prices, runtime: Runtime, architecture: str = "") -> dict[str, Spent]:
    """Time of each phase of one micro-batch, in the order in which the program runs."""
    overlap = frozenset(runtime.training.overlap)
    launch, slowdown = runtime.launch.value, runtime.training.overlap_slowdown.value
    pace = runtime.training.slower(architecture) if graph.facts.mode == "train" else 1.0
    rows = [kernels(block, row, overlap, pace) for block, row in zip(graph.blocks, prices, strict=True)]
    clock = _Clock()
    known: dict[tuple[object, ...], tuple[Spent, _Clock]] = {}
    phases: dict[str, Spent] = {}
    for segment in graph.segments:
        row = rows[segment.block]
        if not row:
            continue
        waits = {slot: clock.pending[s] for slot, s in enumerate(segment.storages) if s in clock.pending}
        waits = {slot: t for slot, t in waits.items() if t > clock.compute}
        key = _key(segment.block, clock, waits, len(row) * launch)
        if key not in known:
            known[key] = _Walk(clock, waits).run(row, launch, slowdown)
        spent, after = known[key]
        now = clock.compute
        clock.compute = now + after.compute
        clock.host += len(row) * launch
        clock.streams |= {axis: now + t for axis, t in after.streams.items()}
        for slot, t in after.pending.items():
            clock.pending[segment.storages[slot]] = now + t
        phases.setdefault(graph.blocks[segment.block].phase, Spent()).add(spent)
    if phases and clock.streams:
        last = phases[next(reversed(phases))]
        tail = max(clock.streams.values()) - clock.compute
        if tail > 0:  # the last reduce-scatters
            axis = max(clock.streams, key=lambda a: clock.streams[a])
            last.elapsed += tail
            last.exposed[axis] = last.exposed.get(axis, 0.0) + tail
            last.hidden[axis] = max(last.hidden.get(axis, 0.0) - tail, 0.0)
    return phases


def _key(block: int, clock: _Clock, waits: dict[int, float], issue: float) -> tuple[object, ...]:
    """The state that a block meets, relative to compute; what cannot hold it back any more is left out."""
    now = clock.compute
    streams = tuple(sorted((a, round(t - now, 11)) for a, t in clock.streams.items() if t > now))
    ahead = max(clock.host - now, -issue)
    return (block, round(ahead, 11), streams, tuple(sorted((s, round(t - now, 11)) for s, t in waits.items())))


class _Walk:
    """One block from the clock's state; times are relative to compute at its start."""

    def __init__(self, clock: _Clock, waits: dict[int, float]) -> None:
        now = clock.compute
        self.host, self.compute = clock.host - now, 0.0
        self.streams = {axis: t - now for axis, t in clock.streams.items()}
        self.made: dict[int, float] = {}  # slot -> end of the kernel in line that wrote it
        self.arrives = {slot: t - now for slot, t in waits.items()}  # slot -> end of the collective beside compute
        self.axis = dict.fromkeys(waits, "dp")
        self.slices: dict[int, tuple[int, float]] = {}  # slot -> (slices, seconds) of the collective that fills it
        self.product: dict[int, float] = {}  # slot -> seconds of the product that made it; 0 where another kernel did
        self.spent = Spent()

    def run(self, row: tuple[_Kernel, ...], launch: float, slowdown: float) -> tuple[Spent, _Clock]:
        for kernel in row:
            self.host += launch
            if kernel.axis and kernel.overlaps:
                self._beside(kernel)
            else:
                self._in_line(kernel)
        spent = self.spent
        spent.launches = len(row)
        spent.slowed = slowdown * sum(max(t, 0.0) for t in spent.hidden.values())
        self.compute += spent.slowed
        spent.elapsed = self.compute
        pending = {slot: t for slot, t in self.arrives.items() if t > self.compute}
        return spent, _Clock(0.0, self.compute, self.streams, pending)

    def _beside(self, kernel: _Kernel) -> None:
        made = max((self.made.get(slot, 0.0) for slot in kernel.reads), default=0.0)
        known = [self.arrives.get(slot, 0.0) for slot in kernel.reads]
        free = max(self.host, self.streams.get(kernel.axis, 0.0), 0.0, *known)
        maker = max((self.product.get(slot, 0.0) for slot in kernel.reads), default=0.0)
        if kernel.slices and maker:  # scattered slice by slice as the product makes them
            start = max(free, made - maker * (1 - 1 / kernel.slices))
            end = max(start + kernel.seconds, made + kernel.seconds / kernel.slices)
        else:
            end = max(free, made) + kernel.seconds
        self.streams[kernel.axis] = end
        _tally(self.spent.hidden, kernel.axis, kernel.seconds)
        if kernel.axis == "ep":
            return
        for slot in kernel.writes:
            self.arrives[slot], self.axis[slot] = end, kernel.axis
            self.slices[slot] = (kernel.slices, kernel.seconds)

    def _in_line(self, kernel: _Kernel) -> None:
        start = max(self.host, self.compute)
        late = [slot for slot in kernel.reads if self.arrives.get(slot, 0.0) > start]
        last = max(late, key=lambda slot: self.arrives[slot], default=-1)
        if kernel.cast and self.slices.get(last, (0, 0.0))[0]:
            self._cast(kernel, start, last)
            return
        steps, lead = kernel.ring, 0.0
        if not steps and kernel.product and last >= 0 and self.slices.get(last, (0, 0.0))[0]:
            steps, seconds = self.slices[last]
            lead = max(self.arrives[last] - seconds * (1 - 1 / steps), start) - start  # until the first slice is there
        if late and not steps:
            lead = self.arrives[last] - start
        if lead > 0:
            self._expose(self.axis[last], lead)
            start += lead
        end = start + kernel.seconds
        if kernel.axis:
            _tally(self.spent.exposed, kernel.axis, kernel.seconds)
        else:
            self.spent.compute += kernel.seconds
            self.spent.weight += kernel.seconds if kernel.weight else 0.0
        if late and steps:
            held = self.arrives[last] + kernel.seconds / steps - end
            if held > 0:
                self._expose(self.axis[last], held)
                end += held
        self.compute = end
        for slot in kernel.writes:
            self.made[slot] = end
            self.product[slot] = kernel.seconds if kernel.product else 0.0
            self.arrives.pop(slot, None)

    def _cast(self, kernel: _Kernel, start: float, source: int) -> None:
        """A cast of what a sliced gather brings: it takes its time now, its result is there a slice after the last."""
        self.compute = start + kernel.seconds
        self.spent.compute += kernel.seconds
        for slot in kernel.writes:
            self.arrives[slot] = self.arrives[source] + kernel.seconds / self.slices[source][0]
            self.slices[slot], self.axis[slot] = self.slices[source], self.axis[source]

    def _expose(self, axis: str, seconds: float) -> None:
        """Compute waits for a collective that was to be hidden."""
        _tally(self.spent.exposed, axis, seconds)
        _tally(self.spent.hidden, axis, -seconds)


def _tally(found: dict[str, float], key: str, seconds: float) -> None:
    found[key] = found.get(key, 0.0) + seconds
