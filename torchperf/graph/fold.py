"""Stretches of like layers shortened to two of each, and back: what a pass does to one of them it does to all.

folded = fold(graph)
graph = folded.unfold(some_pass(folded.graph))

Layers are alike where they call the same blocks in the same order, and their storages meet those of the layers beside
them, and of what lies outside every layer, in the same slots. A pass may rewrite blocks, add and cut segments of a
layer, and make new storages for one layer; it must not tell like layers apart, nor count how often a block runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby

import numpy as np
from numpy.typing import NDArray

from .graph import Graph, Segment

KEPT = 2  # layers of a stretch that stay: the second is between like layers on both sides, and stands for the others
Ids = NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Stretch:
    """Like layers in the order of forward; `storages[i]` are those of layer i, slot by slot of all its segments.

    after   the layer that follows, whose segments meet those of the last
    """

    layers: tuple[str, ...]
    storages: Ids
    after: str

    @property
    def stands_for(self) -> str:
        """The kept layer that the dropped ones are copies of."""
        return self.layers[KEPT - 1]


@dataclass(frozen=True, slots=True)
class Folded:
    """`graph` without the dropped layers; `whole` is what was folded."""

    graph: Graph
    whole: Graph
    stretches: tuple[Stretch, ...]

    def unfold(self, graph: Graph) -> Graph:
        """The program over the whole depth, from what passes made of the folded one."""
        return _Unfolding(self, graph).run() if self.stretches else graph


def fold(graph: Graph) -> Folded:
    """The graph with each stretch of like layers cut down to two."""
    layers = _Layers(graph)
    stretches = tuple(layers.stretches())
    dropped = {layer for stretch in stretches for layer in stretch.layers[KEPT:]}
    renamed = {
        s.after: _names(s.storages[-1], s.storages[KEPT - 1], layers.passed_on(s.layers[-1], s.storages[-1]))
        for s in stretches
    }
    segments = tuple(_renamed(s, renamed.get(s.module)) for s in graph.segments if s.module not in dropped)
    return Folded(replace(graph, segments=segments), graph, stretches)


def _names(old: Ids, new: Ids, which: NDArray[np.bool_]) -> dict[int, int]:
    return dict(zip(old[which].tolist(), new[which].tolist(), strict=True))


def _renamed(segment: Segment, names: dict[int, int] | None) -> Segment:
    if not names:
        return segment
    return replace(segment, storages=tuple(names.get(i, i) for i in segment.storages))


class _Layers:
    """The layers that run forward once and, in training, backward once; and who uses which storage."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        runs: dict[str, list[list[int]]] = {}
        for module, run in groupby(range(len(graph.segments)), lambda s: graph.segments[s].module):
            runs.setdefault(module, []).append(list(run))
        self.runs = {module: found for module, found in runs.items() if module and len(found) <= 2}
        self.names = list(self.runs)
        self.first, self.last, self.outside = self._users()
        self.position = np.full(graph.num_storages, -1, dtype=np.intp)

    def _users(self) -> tuple[Ids, Ids, NDArray[np.bool_]]:
        """Of each storage the first and the last layer that uses it, and whether something outside of them does."""
        graph = self.graph
        number = {module: k for k, module in enumerate(self.names)}
        lengths = [len(segment.storages) for segment in graph.segments]
        every = np.fromiter(chain.from_iterable(s.storages for s in graph.segments), np.intp, sum(lengths))
        owner = np.repeat([number.get(segment.module, -1) for segment in graph.segments], lengths)
        outside = np.zeros(graph.num_storages, dtype=bool)
        outside[every[owner < 0]] = True
        outside[list(graph.facts.outputs)] = True
        inside = np.flatnonzero(owner >= 0)
        inside = inside[np.argsort(owner[inside], kind="stable")]
        first, last = np.full((2, graph.num_storages), -1, dtype=np.intp)
        last[every[inside]] = owner[inside]  # of several writes to one place the last one stands
        first[every[inside[::-1]]] = owner[inside[::-1]]
        return first, last, outside

    def passed_on(self, module: str, storages: Ids) -> NDArray[np.bool_]:
        """Which of a layer's storages the next layer uses too, and no third one."""
        layer = self.names.index(module)
        shared: NDArray[np.bool_] = (self.first[storages] == layer) & (self.last[storages] == layer + 1)
        return shared

    def stretches(self) -> Iterator[Stretch]:
        """Every run of like layers that is longer than what is kept, and has a layer behind it."""
        storages = [self._storages(module) for module in self.names]
        marks = [self._mark(k, storages) for k in range(len(self.names))]
        start = 0
        for k in range(1, len(self.names) + 1):
            if k < len(self.names) and marks[k] == marks[start] and self._adjacent(k):
                continue
            if k - start > KEPT and k < len(self.names) and self._adjacent(k):
                yield Stretch(tuple(self.names[start:k]), np.stack(storages[start:k]), self.names[k])
            start = k

    def _storages(self, module: str) -> Ids:
        segments = [self.graph.segments[s] for run in self.runs[module] for s in run]
        return np.array([i for segment in segments for i in segment.storages], dtype=np.intp)

    def _mark(self, k: int, storages: Sequence[Ids]) -> tuple[object, ...]:
        """What like layers share: blocks, and for each slot whom else its storage meets, and where."""
        own = storages[k]
        far = self.last[own] - self.first[own] > 1
        marks = [np.where(far, own, -1), self.outside[own]]
        marks += [self._places(own, storages[i]) for i in (k - 1, k, k + 1) if 0 <= i < len(storages)]
        blocks = tuple(tuple(self.graph.segments[s].block for s in run) for run in self.runs[self.names[k]])
        return (blocks, np.stack(marks).tobytes())

    def _places(self, own: Ids, other: Ids) -> Ids:
        """Where each of these storages first stands among the others, -1 where it does not."""
        self.position[other[::-1]] = np.arange(len(other))[::-1]
        found = self.position[own]
        self.position[other] = -1
        return found

    def _adjacent(self, k: int) -> bool:
        """Whether layer k runs right after layer k - 1 in forward, and right before it in backward."""
        before, here = self.runs[self.names[k - 1]], self.runs[self.names[k]]
        if len(before) != len(here) or before[0][-1] + 1 != here[0][0]:
            return False
        return len(here) == 1 or here[1][-1] + 1 == before[1][0]


class _Unfolding:
    """Copies what stands for dropped layers, with their storages, and new ones for what passes added."""

    def __init__(self, folded: Folded, graph: Graph) -> None:
        self.graph, self.stretches = graph, folded.stretches
        self.known = folded.graph.num_storages  # from here on the passes numbered
        self.fresh = folded.whole.num_storages + graph.num_storages - self.known
        self.names = np.arange(graph.num_storages)
        self.names[self.known :] += folded.whole.num_storages - self.known
        self.runs = [list(run) for _, run in groupby(graph.segments, lambda segment: segment.module)]

    def run(self) -> Graph:
        stands = {stretch.stands_for: stretch for stretch in self.stretches}
        after = {stretch.after: stretch for stretch in self.stretches}
        copies = {stretch.stands_for: self._copies(stretch) for stretch in self.stretches}
        segments: list[Segment] = []
        seen: set[str] = set()
        for run in self.runs:
            module = run[0].module
            names = self._last(after[module]) if module in after else self.names
            own = self._moved(run, module, names)
            if module not in stands:
                segments += own
                continue
            added = [self._moved(run, layer, names) for layer, names in copies[module]]
            forward = module not in seen
            seen.add(module)
            ordered = [own, *added] if forward else [*reversed(added), own]
            segments += chain.from_iterable(ordered)
        return replace(self.graph, segments=tuple(segments))

    def _copies(self, stretch: Stretch) -> list[tuple[str, Ids]]:
        """Each dropped layer, and what the storages of the one that stands for it are called there."""
        used = np.unique([i for s in self.graph.segments if s.module == stretch.stands_for for i in s.storages])
        new = used[used >= self.known]
        found = []
        for layer, storages in zip(stretch.layers[KEPT:], stretch.storages[KEPT:], strict=True):
            names = self.names.copy()
            names[stretch.storages[KEPT - 1]] = storages
            names[new] = np.arange(self.fresh, self.fresh + len(new))
            self.fresh += len(new)
            found.append((layer, names))
        return found

    def _last(self, stretch: Stretch) -> Ids:
        """What the layer behind a stretch calls what it was made to share with the one that stands for the last."""
        names = self.names.copy()
        names[stretch.storages[KEPT - 1]] = stretch.storages[-1]
        return names

    def _moved(self, run: Sequence[Segment], module: str, names: Ids) -> list[Segment]:
        return [Segment(s.block, module, tuple(names[list(s.storages)].tolist())) for s in run]
