"""A schedule as a graph of what waits for what, in levels: no two actions of a level wait for each other.

One graph serves every pipeline of that schedule, ranks, micro-batches and chunks, whatever its seconds.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ..graph.errors import TorchperfError
from .pipeline_action import KINDS, Action
from .pipeline_order import order, schedule_of

Ints = NDArray[np.int64]
SEND_ACTIVATION, SEND_GRADIENT = 4, 5  # kinds of the transfers, after the KINDS of the actions
_NUMBER = {kind: number for number, kind in enumerate(KINDS)}
_ALL = 6


@dataclass(frozen=True, slots=True)
class Levels:
    """Nodes sorted by level: the actions of the ranks and, with `links`, their transfers.

    own, dep     the node before it on its rank (or link), and the one whose result it needs; n + rank and n + ranks
                 where there is none
    rank, chunk, kind, micro_batch    of each node; kind 0 to 3 as KINDS, 4 and 5 an activation and a gradient sent
    code         these four in one number
    bounds       where each level begins, and n
    last         the last action of each rank
    """

    ranks: int
    chunks: int
    micro_batches: int
    links: bool
    own: Ints
    dep: Ints
    rank: Ints
    chunk: Ints
    kind: Ints
    micro_batch: Ints
    code: Ints
    level: Ints
    bounds: Ints
    last: Ints


@lru_cache(maxsize=32)
def levels(schedule: str, ranks: int, micro_batches: int, chunks: int, links: bool) -> Levels:
    """The graph of a schedule. Raises TorchperfError where its ranks wait for each other for ever."""
    orders = [order(schedule, r, ranks, micro_batches, chunks) for r in range(ranks)]
    nodes = _Nodes(schedule, orders, chunks, micro_batches, links)
    n = len(nodes.level)
    own, dep, code, level = (np.array(c, dtype=np.int64) for c in (nodes.own, nodes.dep, nodes.code, nodes.level))
    by_level = np.argsort(level, kind="stable")
    place = np.arange(n + ranks + 1)
    place[by_level] = np.arange(n)
    own, dep, code, level = own[by_level], dep[by_level], code[by_level], level[by_level]
    stage, micro_batch = np.divmod(code, micro_batches)
    stage, kind = np.divmod(stage, _ALL)
    rank, chunk = np.divmod(stage, chunks)
    return Levels(
        ranks=ranks,
        chunks=chunks,
        micro_batches=micro_batches,
        links=links,
        own=place[np.where(own < 0, n + rank, own)],
        dep=place[np.where(dep < 0, n + ranks, dep)],
        rank=rank,
        chunk=chunk,
        kind=kind,
        micro_batch=micro_batch,
        code=code,
        level=level,
        bounds=np.searchsorted(level, np.arange(int(level[-1]) + 2)),
        last=place[np.array(nodes.last)],
    )


class _Nodes:
    """Columns of the graph in an order in which each node follows what it needs; -1 where it needs nothing."""

    def __init__(self, schedule: str, orders: list[list[Action]], chunks: int, micro_batches: int, links: bool) -> None:
        self.own: list[int] = []
        self.dep: list[int] = []
        self.code: list[int] = []
        self.level: list[int] = []
        self.orders, self.chunks, self.micro_batches, self.links = orders, chunks, micro_batches, links
        self.sources, self.targets = _neighbours(schedule, len(orders), chunks)
        self.last = [-1] * len(orders)
        self.at = [0] * len(orders)
        self.made: dict[tuple[int, int, bool], int] = {}
        self.waiting: dict[tuple[int, int, bool], int] = {}
        self.link: dict[tuple[int, int], int] = {}
        ready = list(reversed(range(len(orders))))
        while ready:
            self._advance(ready.pop(), ready)
        if self.waiting:
            raise TorchperfError(f"the ranks of the schedule `{schedule}` wait for each other")

    def _advance(self, rank: int, ready: list[int]) -> None:
        """Go on with a rank until it needs what is not made yet."""
        levels, actions, first = self.level, self.orders[rank], rank * self.chunks
        last = self.last[rank]
        for i in range(self.at[rank], len(actions)):
            kind, j, chunk = actions[i]
            forward = kind == "F"
            dep, level = -1, levels[last] if last >= 0 else -1
            source = self.sources[kind][first + chunk]
            if source >= 0:
                need = (source, j, forward)
                if need not in self.made:
                    self.waiting[need] = rank
                    self.at[rank], self.last[rank] = i, last
                    return
                dep = self.made[need]
                level = max(level, levels[dep])
            node = self._add(last, dep, ((first + chunk) * _ALL + _NUMBER[kind]) * self.micro_batches + j, level + 1)
            last = node
            target = self.targets[kind][first + chunk]
            if target >= 0:
                if self.links and target // self.chunks != rank:
                    node = self._sent(node, (rank, target // self.chunks), forward)
                made = (first + chunk, j, forward)
                self.made[made] = node
                if made in self.waiting:
                    ready.append(self.waiting.pop(made))
        self.at[rank], self.last[rank] = len(actions), last

    def _add(self, own: int, dep: int, code: int, level: int) -> int:
        self.own.append(own)
        self.dep.append(dep)
        self.code.append(code)
        self.level.append(level)
        return len(self.level) - 1

    def _sent(self, node: int, link: tuple[int, int], forward: bool) -> int:
        """The transfer of what a node made, after the last one from its rank to the same other."""
        before = self.link.get(link, -1)
        level = max(self.level[node], self.level[before] if before >= 0 else -1) + 1
        stage, j = divmod(self.code[node], self.micro_batches)
        code = (stage // _ALL * _ALL + (SEND_ACTIVATION if forward else SEND_GRADIENT)) * self.micro_batches + j
        self.link[link] = self._add(before, node, code, level)
        return self.link[link]


def _neighbours(schedule: str, ranks: int, chunks: int) -> tuple[dict[str, list[int]], dict[str, list[int]]]:
    """By kind and rank * chunks + chunk: where what it needs comes from, and where its result goes; -1 for nowhere."""
    nowhere = [-1] * (ranks * chunks)
    before, after = list(nowhere), list(nowhere)
    for route in schedule_of(schedule).routes(ranks, chunks):
        for a, b in itertools.pairwise(route):
            before[b[0] * chunks + b[1]] = a[0] * chunks + a[1]
            after[a[0] * chunks + a[1]] = b[0] * chunks + b[1]
    return (
        {"F": before, "B": after, "BW": after, "W": nowhere},
        {"F": after, "B": before, "BW": before, "W": nowhere},
    )


@dataclass(frozen=True, slots=True)
class Steady:
    """Where a graph repeats itself: nodes before each cut, and those that many micro-batches before them."""

    cuts: tuple[tuple[Ints, Ints], ...]


@lru_cache(maxsize=32)
def steady(schedule: str, ranks: int, micro_batches: int, chunks: int, links: bool, step: int) -> Steady | None:
    """Where `step` micro-batches more only insert a copy of the levels before; None where that is not found.

    A level is steady if it is a copy, `step` micro-batches later, of the level one period before. A cut lies at the end
    of a run of such levels; what later levels wait for reaches back to a few of them, and these are its nodes.
    """
    graph = levels(schedule, ranks, micro_batches, chunks, links)
    routes = len(schedule_of(schedule).routes(ranks, chunks))
    before, period = _copies(graph, step // routes, micro_batches // routes)
    if period == 0:
        return None
    counts = np.diff(graph.bounds)
    copied = np.add.reduceat(before >= 0, graph.bounds[:-1]) == counts
    copied[period:] &= counts[period:] == counts[:-period]
    copied[:period] = False
    edges = np.flatnonzero(np.diff(np.concatenate(([0], copied.astype(np.int8), [0]))))
    runs = sorted(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True), key=lambda run: run[0] - run[1])
    missing = graph.level.size * step // micro_batches
    cuts = []
    for begin, end in runs:
        inserted = int(graph.bounds[end] - graph.bounds[max(end - period, 0)])
        reach = _reach(graph, end)
        if inserted <= missing and end - reach >= begin:
            missing -= inserted
            nodes = np.arange(graph.bounds[end - reach], graph.bounds[end])
            cuts.append((nodes, before[nodes]))
        if missing == 0:
            return Steady(tuple(cuts))
    return None


def _copies(graph: Levels, shift: int, per_route: int) -> tuple[Ints, int]:
    """Of each node the same one `shift` micro-batches and a period of levels before (-1: none), and the period."""
    node = np.full(int(graph.code.max()) + 1, -1, dtype=np.int64)
    node[graph.code] = np.arange(graph.code.size)
    inside = graph.micro_batch % per_route >= shift
    other = np.where(inside, node[np.maximum(graph.code - shift, 0)], -1)
    apart = np.where(other >= 0, graph.level - graph.level[other], 0)
    if not np.any(apart > 0):
        return other, 0
    period = int(np.bincount(apart[apart > 0]).argmax())
    return np.where(apart == period, other, -1), period


def _reach(graph: Levels, end: int) -> int:
    """How many levels before `end` those from `end` on wait for."""
    first = int(graph.bounds[end])
    needed = np.concatenate((graph.own[first:], graph.dep[first:]))
    needed = needed[needed < first]
    return end - int(graph.level[needed.min()]) if needed.size else 1
