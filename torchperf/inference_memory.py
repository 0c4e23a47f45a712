"""What an engine keeps on a device, how much of it the cache may take, and so how many requests and how long a one."""

from __future__ import annotations

from dataclasses import dataclass

from .graph.cache import growing_bytes, kv_bytes, state_bytes
from .graph.dtype import nbytes
from .graph.graph import Facts
from .graph.inference import CacheRow, Request, ServingMemory
from .inference_cost import Stage
from .inference_planner import InferencePlanner, Lowered
from .rewrite.inference import cache_bits
from .schedule import memory

LONGEST = 2**40  # tokens; a cache that holds these has no bound


@dataclass(frozen=True, slots=True)
class Cache:
    """The cache of one stage of one rank: bytes of sequences.

    layers   indexes of its layers; None for all
    block    tokens are taken in blocks of as many
    """

    facts: Facts
    bits: float
    tp: int
    layers: frozenset[int] | None
    block: int = 1

    def nbytes(self, sequences: int, length: int) -> int:
        """Bytes of so many sequences of `length` tokens."""
        whole = -(-length // self.block) * self.block
        return kv_bytes(self.facts, self.bits, sequences, whole, self.tp, layers=self.layers)

    @property
    def states(self) -> int:
        """Bytes of a sequence that do not grow."""
        return state_bytes(self.facts, 1, self.tp, layers=self.layers)

    def most(self, pool: float, length: int) -> int:
        """Sequences of `length` tokens that `pool` bytes hold."""
        one = self.nbytes(1, length)
        return max(int(pool // one), 0) if one else LONGEST

    def longest(self, pool: float) -> int | None:
        """Tokens of the longest sequence that `pool` bytes hold, whole blocks; None without a bound."""
        if self.nbytes(1, 1) > pool:
            return 0
        if self.nbytes(1, LONGEST) <= pool:
            return None
        low, high = 1, LONGEST // self.block
        while high - low > 1:
            middle = (low + high) // 2
            if self.nbytes(1, middle * self.block) <= pool:
                low = middle
            else:
                high = middle
        return low * self.block


def element_bits(facts: Facts, kv: str) -> float:
    """Bits of an element of the cache with its share of scales: of keys and values of a head, or of a latent."""
    widths = {e.elements // (e.heads * (2 if e.kind == "kv" else 1)) for e in facts.cache if e.kind != "state"}
    return cache_bits(kv, min(widths, default=1))


def cache_of(planner: InferencePlanner, facts: Facts, stage: Stage | None = None) -> Cache:
    """The cache of a stage, or of all stages together."""
    layers = None
    if stage is not None and planner.plan.pp > 1:
        layers = frozenset(int(path.rpartition(".")[2]) for path in stage.layers)
    block = int(planner.serving.block.value)
    return Cache(facts, element_bits(facts, planner.precision.kv), planner.plan.tp, layers, block)


@dataclass(frozen=True, slots=True)
class Room:
    """What every stage leaves for the cache. `tokens` are those of the largest forward pass."""

    planner: InferencePlanner
    lowered: Lowered
    utilization: float
    tokens: int
    sequences: int

    def of(self, stage: int, requests: int, length: int) -> ServingMemory:
        """The memory of a stage with so many requests of an engine on it."""
        planner, runtime = self.planner, self.planner.runtime
        part = self.lowered.stages[stage]
        facts = part.graph.facts
        weights = sum(nbytes(p.numel, p.dtype) for p in facts.parameters)
        buffers = sum(nbytes(b.numel, b.dtype) for b in facts.buffers)
        sizes = {"batch": self.sequences, "seq": max(self.tokens // self.sequences, 2)}
        wide = planner.lowered("prefill", sizes).stages[stage]
        activations = memory.peak(wide.graph, wide.works).nbytes
        taken = weights + buffers + activations
        reserve = round(runtime.reserve.value + runtime.allocator_fraction.value * taken)
        graphs = round(planner.serving.graph_memory.value)
        usable = planner.system.accelerator.memory.usable.value
        pool = _pool(planner.serving.pool, self.utilization, usable, taken + reserve, graphs)
        own = -(-requests // planner.plan.attention_dp)
        cache = cache_of(planner, self.lowered.facts, part).nbytes(own, length)
        budget = round(usable * (1.0 if planner.serving.pool == "free" else self.utilization))
        return ServingMemory(
            weights, buffers, activations, reserve, graphs, round(pool), cache, int(usable), budget, stage
        )

    def stages(self, requests: int, length: int) -> list[ServingMemory]:
        """Of every stage."""
        return [self.of(i, requests, length) for i in range(len(self.lowered.stages))]

    def tightest(self, requests: int, length: int) -> ServingMemory:
        """The memory of the stage whose pool is shortest for these requests."""
        return min(self.stages(requests, length), key=lambda m: m.pool - m.cache)

    def most(self, length: int) -> int:
        """Requests of `length` tokens that one engine holds at once."""
        caches = [cache_of(self.planner, self.lowered.facts, stage) for stage in self.lowered.stages]
        found = min(c.most(m.pool, length) for c, m in zip(caches, self.stages(1, length), strict=True))
        return found * self.planner.plan.attention_dp

    def longest(self) -> int | None:
        """Tokens of the longest single request; None without a bound."""
        caches = [cache_of(self.planner, self.lowered.facts, stage) for stage in self.lowered.stages]
        found = [c.longest(m.pool) for c, m in zip(caches, self.stages(1, 1), strict=True)]
        bounded = [length for length in found if length is not None]
        return min(bounded, default=None)


def _pool(kind: str, share: float, usable: float, taken: float, graphs: float) -> float:
    """Bytes that the cache may take; see Serving."""
    if kind == "budget":
        return min(share * usable, usable - graphs) - taken
    if kind == "free":
        return min(share * (usable - taken), usable - graphs - taken)
    return share * usable - graphs - taken


def rows(planner: InferencePlanner, facts: Facts, request: Request) -> tuple[CacheRow, ...]:
    """The cache by kind and window, of all layers on one rank of a tensor-parallel group."""
    bits, tp = element_bits(facts, planner.precision.kv), planner.plan.tp
    groups: dict[tuple[str, int], list[float]] = {}
    for entry in facts.cache:
        one = Facts(facts.model, facts.model_class, facts.mode, cache=(entry,))
        kept = groups.setdefault((entry.kind, entry.window), [0.0, 0.0, 0.0])
        kept[0] += entry.count
        if entry.kind == "state":
            kept[1] += state_bytes(one, 1, tp)
            kept[2] += state_bytes(one, 1, tp)
        else:
            kept[1] += growing_bytes(one, bits, 1, 1, tp)
            kept[2] += growing_bytes(one, bits, 1, request.total, tp)
    return tuple(CacheRow(kind, int(n), window, token, whole) for (kind, window), (n, token, whole) in groups.items())
