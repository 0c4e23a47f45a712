"""When the ranks of a pipeline end: a longest path, level by level, and the steady state in one step."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from .pipeline_levels import Levels, levels, steady
from .pipeline_order import schedule_of

Floats = NDArray[np.float64]
_SAME = 1e-9  # of the step: two ends a period apart that differ by less are taken as periodic


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds: of each action [rank][chunk][kind], of a transfer on [rank][chunk] to the next stage, of the head."""

    seconds: tuple[tuple[tuple[float, ...], ...], ...]
    send: tuple[tuple[float, ...], ...]
    overlap: bool
    head: tuple[float, ...]


@lru_cache(maxsize=1024)  # plans that differ in their replicas differ in their tails alone
def finish(schedule: str, micro_batches: int, costs: Costs) -> tuple[float, ...]:
    """When each rank ends, before its tail, in seconds.

    Fewer micro-batches are walked than there are, where the ends at the cuts prove the rest to be repetitions.
    """
    ranks, chunks = len(costs.send), len(costs.send[0])
    sent = _sent(schedule, costs)
    links = costs.overlap and _queued(costs, sent)
    for fewer, step in _fewer(schedule, ranks, micro_batches, links):
        cuts = steady(schedule, ranks, fewer, chunks, links, step)
        if cuts is None:
            continue
        graph = levels(schedule, ranks, fewer, chunks, links)
        end = walk(graph, costs, sent)
        last = _last(graph, end, costs, sent)
        grown = [end[nodes] - end[before] for nodes, before in cuts.cuts]
        if all(float(np.ptp(g)) <= _SAME * float(np.max(last)) for g in grown):
            later = (micro_batches - fewer) // step * sum(float(np.mean(g)) for g in grown)
            return tuple((last + later).tolist())
    graph = levels(schedule, ranks, micro_batches, chunks, links)
    return tuple(_last(graph, walk(graph, costs, sent), costs, sent).tolist())


def _fewer(schedule: str, ranks: int, micro_batches: int, links: bool) -> Iterator[tuple[int, int]]:
    """(micro-batches, step) to try, the cheapest first: a repetition of the order, or as many as there are ranks.

    A round trip through the ranks that is longer than their work takes as many micro-batches as it passes ranks.
    """
    known = schedule_of(schedule).steady
    if known is None:
        return
    step, least = known(ranks)
    wide = math.lcm(step, ranks)
    tries = ((wide, least + wide), (wide, least + 2 * ranks + wide))
    for stride, enough in tries if links and step < wide else ((step, least), *tries):
        fewer = micro_batches - max(micro_batches - enough, 0) // stride * stride
        if fewer < micro_batches:
            yield fewer, stride


def _sent(schedule: str, costs: Costs) -> Floats:
    """Seconds of the transfer after [rank, chunk, kind], kinds as in Levels; none within a rank or at the ends."""
    ranks, chunks = len(costs.send), len(costs.send[0])
    sent = np.zeros((ranks, chunks, 6))
    for route in schedule_of(schedule).routes(ranks, chunks):
        for (rank, chunk), (other, behind) in itertools.pairwise(route):
            if rank != other:
                sent[rank, chunk, 0] = costs.send[rank][chunk]
                sent[other, behind, [1, 3]] = costs.send[rank][chunk]
    return sent


def _queued(costs: Costs, sent: Floats) -> bool:
    """Whether a transfer may wait for the one before: one longer than the shortest action of its rank."""
    shortest = np.array(costs.seconds)[:, :, [0, 1, 3]].min(axis=(1, 2))
    return bool(np.any(sent.max(axis=(1, 2)) > shortest))


def walk(graph: Levels, costs: Costs, sent: Floats) -> Floats:
    """The end of each node; after them the head of each rank, and -inf."""
    n = graph.level.size
    where = (graph.rank, graph.chunk, graph.kind)
    seconds = np.concatenate((np.array(costs.seconds), sent[:, :, [0, 1]]), axis=2)[where]
    after = np.concatenate((sent[where], np.zeros(graph.ranks + 1)))
    arrival = 0.0 if graph.links else after[graph.dep]
    held = 0.0 if costs.overlap else np.maximum(after[graph.own], after[graph.dep])
    low, high = graph.bounds[graph.level], graph.bounds[graph.level + 1]
    index, added = np.empty(2 * n, dtype=np.int64), np.empty(2 * n)
    here = np.arange(n)
    index[here + low], index[here + high] = graph.own, graph.dep
    added[here + low], added[here + high] = seconds + held, seconds + arrival
    end = np.concatenate((np.zeros(n), costs.head, [-np.inf]))
    bounds = graph.bounds.tolist()
    for a, b in itertools.pairwise(bounds):
        both = end.take(index[2 * a : 2 * b])
        both += added[2 * a : 2 * b]
        np.maximum(both[: b - a], both[b - a :], out=end[a:b])
    return end


def _last(graph: Levels, end: Floats, costs: Costs, sent: Floats) -> Floats:
    """When each rank has done its last action. Without overlap its tail begins when the last transfer is through."""
    last = graph.last
    held = 0.0 if costs.overlap else sent[graph.rank[last], graph.chunk[last], graph.kind[last]]
    ends: Floats = end[last] + held
    return ends
