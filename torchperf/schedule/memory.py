"""Bytes over the step, by the life of each storage: from the op that first writes it to the last that reads it.

Parameters, their gradients and the optimizer state are there for the whole step. What the caller holds (inputs,
logits, loss) lives until backward ends. Segments of one block in the same situation share one profile, so a stack of
126 layers costs as much as one of 3.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..graph.graph import Block, Graph
from ..graph.work import Work

_STATIC = frozenset({"param", "buffer", "grad", "cache", "state"})
SAVED = ("activations", "logits_loss")


@dataclass(frozen=True, slots=True)
class Life:
    """Where a storage lives: (segment, op) of its first and last use, bytes, and what it belongs to."""

    birth: tuple[int, int]
    death: tuple[int, int]
    nbytes: int
    part: str  # activations | logits_loss | gathered | temporary


@dataclass(frozen=True, slots=True)
class Peak:
    """The worst moment. Bytes by part sum to `nbytes`; `at` is (segment, op)."""

    nbytes: int
    activations: int
    logits_loss: int
    temporary: int
    gathered: int
    at: tuple[int, int]
    module: str
    phase: str


def head_start(graph: Graph, works: Sequence[Sequence[Work]]) -> tuple[int, int]:
    """(segment, op) of the output head: the last contraction of forward, where it lies outside every layer."""
    last = (len(graph.segments), 0)
    for s, segment in enumerate(graph.segments):
        block = graph.blocks[segment.block]
        if block.phase == "forward":
            contractions = [i for i, w in enumerate(works[segment.block]) if w.kind == "matmul"]
            if contractions:
                last = (s, contractions[-1]) if not segment.module else (len(graph.segments), 0)
    return last


def lives(graph: Graph, works: Sequence[Sequence[Work]]) -> dict[int, Life]:
    """The life of every storage that is not there for the whole step, by its id in the program."""
    touches = [_touches(graph, b) for b in range(len(graph.blocks))]
    elsewhere = [_summed_elsewhere(block) for block in graph.blocks]
    phases = [block.phase for block in graph.blocks]
    head = head_start(graph, works)
    end = len(graph.segments) - 1
    while end > 0 and phases[graph.segments[end].block] == "optimizer":
        end -= 1
    last_op = (end, max(len(graph.blocks[graph.segments[end].block].ops) - 1, 0)) if graph.segments else (0, 0)
    held = set(graph.facts.outputs)
    birth: dict[int, tuple[int, int]] = {}
    death: dict[int, tuple[int, int]] = {}
    size: dict[int, int] = {}
    gathered: set[int] = set()
    for s, segment in enumerate(graph.segments):
        block = graph.blocks[segment.block]
        for slot, storage in enumerate(segment.storages):
            kind = block.storages[slot].kind
            if kind in _STATIC or slot not in touches[segment.block]:
                continue
            if storage not in birth and slot in elsewhere[segment.block]:
                continue
            first, last = touches[segment.block][slot]
            if kind == "gathered":
                gathered.add(storage)
            if storage not in birth:
                birth[storage] = (0, 0) if kind == "input" else (s, first)
                size[storage] = int(block.storages[slot].nbytes)  # type: ignore[arg-type]
            last_use = last_op if kind == "input" or storage in held else (s, last)
            death[storage] = max(death.get(storage, last_use), last_use)
    found = {}
    for storage, born in birth.items():
        phase = phases[graph.segments[born[0]].block]
        dies = phases[graph.segments[death[storage][0]].block]
        part = "temporary"
        if phase == "forward" and dies in ("backward", "recompute"):
            part = "logits_loss" if born >= head else "activations"
        if storage in gathered:
            part = "gathered"
        found[storage] = Life(born, death[storage], size[storage], part)
    return found


def _touches(graph: Graph, b: int) -> dict[int, tuple[int, int]]:
    """First and last op that uses each slot of block b."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for i, op in enumerate(graph.blocks[b].ops):
        for value in (*op.inputs, *op.outputs):
            first.setdefault(value.slot, i)
            last[value.slot] = i
    return {slot: (first[slot], last[slot]) for slot in first}


def _summed_elsewhere(block: Block) -> frozenset[int]:
    """Slots of the gradient of a tied parameter's other use, which nothing here makes: where that use is on another
    stage of a pipeline, the two are summed by an all-reduce once a step and never sent."""
    found: set[int] = set()
    seen: set[int] = set()
    for op in block.ops:
        sums = {value.shape for value in op.outputs if block.storages[value.slot].kind == "grad"}
        for value in op.inputs:
            if value.slot not in seen and value.shape in sums and block.storages[value.slot].kind == "activation":
                found.add(value.slot)
        seen.update(value.slot for value in (*op.inputs, *op.outputs))
    return frozenset(found)


def peak(graph: Graph, works: Sequence[Sequence[Work]]) -> Peak:
    """The worst moment of the step, without what is there all the time."""
    return peak_of(graph, lives(graph, works))


def peak_of(graph: Graph, known: Mapping[int, Life]) -> Peak:
    """The worst moment, from the lives of the storages."""
    offsets = np.cumsum([0, *(len(graph.blocks[s.block].ops) for s in graph.segments)])
    delta = np.zeros(int(offsets[-1]) + 1)
    if known:
        born = np.array([offsets[life.birth[0]] + life.birth[1] for life in known.values()])
        gone = np.array([offsets[life.death[0]] + life.death[1] + 1 for life in known.values()])
        size = np.array([life.nbytes for life in known.values()], dtype=float)
        np.add.at(delta, born, size)
        np.add.at(delta, gone, -size)
    alive = np.cumsum(delta[:-1])
    if alive.size == 0:
        return Peak(0, 0, 0, 0, 0, (0, 0), "", "")
    top = int(np.argmax(alive))
    segment = int(np.searchsorted(offsets, top, side="right")) - 1
    at = (segment, top - int(offsets[segment]))
    parts = dict.fromkeys(("activations", "logits_loss", "temporary", "gathered"), 0)
    for life in known.values():
        if life.birth <= at <= life.death:
            parts[life.part] += life.nbytes
    op = graph.blocks[graph.segments[segment].block].ops[at[1]]
    return Peak(sum(parts.values()), **parts, at=at, module=op.module, phase=op.phase)


@dataclass(frozen=True, slots=True)
class Saved:
    """Bytes made in forward that backward (or a recompute) reads: they wait while a micro-batch is under way."""

    activations: int
    logits_loss: int

    @property
    def nbytes(self) -> int:
        return self.activations + self.logits_loss


def saved_bytes(graph: Graph, known: Mapping[int, Life]) -> Saved:
    """What one micro-batch keeps between its forward and its backward."""
    outputs = set(graph.facts.outputs)
    kept = [life for i, life in known.items() if life.part in SAVED and i not in outputs]
    loss = sum(life.nbytes for life in kept if life.part == "logits_loss")
    return Saved(sum(life.nbytes for life in kept) - loss, loss)


def weight_bytes(graph: Graph, known: Mapping[int, Life]) -> int:
    """What the products that make parameters' gradients read: inputs saved by forward and gradients of outputs.

    A schedule that puts these products off holds both until then: M_W of Qi et al. 2023, arXiv 2401.10241, table 2.
    """
    read = [
        frozenset(
            v.slot
            for op in block.ops
            if block.phase == "backward" and any(block.storages[v.slot].kind == "grad" for v in op.outputs)
            for v in op.inputs
        )
        for block in graph.blocks
    ]
    storages = {segment.storages[slot] for segment in graph.segments for slot in read[segment.block]}
    return sum(known[i].nbytes for i in storages if i in known)


def saved(graph: Graph, works: Sequence[Sequence[Work]]) -> dict[int, Life]:
    """Storages made in forward that backward (or a recompute) reads: the activations in the usual sense."""
    held = set(graph.facts.outputs)
    return {i: life for i, life in lives(graph, works).items() if life.part in SAVED and i not in held}
