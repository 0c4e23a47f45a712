"""Expert-parallel ranks side by side on real numbers: each with tokens of its own, rows sent by where they route.

The program that is run is the rewritten one, op by op; only the number of rows inside is what routing makes it, where
the program has the mean. Ops inside are known by the `load` that an imbalance gives them.
"""

from __future__ import annotations

import importlib.util
import itertools
import math
import re
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from torchperf.graph.graph import Block, Graph, Segment
from torchperf.graph.op import Op
from torchperf.graph.tensor import Value
from torchperf.partition.expert_parallel import ExpertParallel

_spec = importlib.util.spec_from_file_location("interpreter", Path(__file__).with_name("interpreter.py"))
assert _spec is not None
assert _spec.loader is not None
interpreter = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(interpreter)
Of = tuple[int, ...]


def kinds(graph: Graph) -> dict[int, tuple[str, str]]:
    """(kind, starred name) of each storage of the program."""
    return {
        storage: (slot.kind, slot.name or "")
        for segment in graph.segments
        for storage, slot in zip(segment.storages, graph.blocks[segment.block].storages, strict=False)
        if slot.kind != "activation"
    }


class Whole:
    """The model without any split, on each rank's tokens: `machines[rank]` holds every storage."""

    def __init__(self, graph: Graph, ranks: int) -> None:
        self.graph, self.kinds = graph, kinds(graph)
        first = interpreter.Machine(graph).run()
        given = {i: t for i, t in first.storages.items() if self.kinds.get(i, ("", ""))[0] in ("param", "buffer")}
        ids = [i for i, (kind, _) in self.kinds.items() if kind == "input"]
        self.machines = []
        for rank in range(ranks):
            machine = interpreter.Machine(graph)
            torch.manual_seed(100 + rank)
            machine.storages = {i: t.clone() for i, t in given.items()}
            machine.storages |= {i: torch.randint(0, interpreter.IDS, first.storages[i].shape) for i in ids}
            self.given = [*getattr(self, "given", []), {i: t.clone() for i, t in machine.storages.items()}]
            self.machines.append(machine.run())


class Ranks:
    """Runs `found.program` on all ranks at once.

    experts, rows   of one layer: their number, and the rows (tokens * top_k) that a rank brings; rows must be a size
                    that no other dim inside has. 0 rows where every expert meets every token
    computed        per product: rows of all ranks
    """

    def __init__(self, whole: Whole, found: ExpertParallel, ranks: int, experts: int, rows: int) -> None:
        self.graph, self.ranks, self.experts, self.rows = found.program, ranks, experts, rows
        self.own = experts // ranks
        self.names = {re.sub(r"\.\d+\.", ".*.", name) for name in found.parameters}
        self.inside: set[int] = set()  # storages written inside
        self.slices: set[int] = set()  # storages read inside that have no rows
        self.computed: list[int] = []
        self.whole = whole
        self.storages = [dict(given) for given in whole.given]
        for rank, own in enumerate(self.storages):
            for i, (kind, name) in whole.kinds.items():
                if kind == "param" and name in self.names:
                    own[i] = self.slice(own[i], rank).clone()

    def slice(self, flat: Tensor, rank: int) -> Tensor:
        """A rank's experts of a storage in which they stand one after another."""
        n = len(flat) // self.ranks
        return flat[rank * n : (rank + 1) * n]

    def run(self) -> Ranks:
        for segment in self.graph.segments:
            block = self.graph.blocks[segment.block]
            for op in block.ops:
                if op.name == "torchperf.all_to_all":
                    self._exchange(block, op, segment.storages)
                    continue
                for rank in range(self.ranks):
                    self._op(block, op, segment, rank)
                if op.name == "aten._grouped_mm.default":
                    self.computed.append(sum(int(self._ends(op, segment.storages, r)[-1]) for r in range(self.ranks)))
        return self

    def wrong(self) -> list[str]:
        """Where the ranks differ from the model without a split."""
        found = []
        truth = [machine.storages for machine in self.whole.machines]
        for rank, own in enumerate(self.storages):
            for i, mine in own.items():
                kind, name = self.whole.kinds.get(i, ("activation", ""))
                other = kind != "grad" and i in self.inside | self.slices
                if i not in truth[rank] or other or kind == "param":
                    continue
                expected = truth[rank][i]
                if name in self.names:  # complete: of the tokens of all ranks
                    expected = self.slice(torch.stack([t[i] for t in truth]).sum(0), rank)
                if mine.shape != expected.shape:
                    found.append(f"rank {rank} storage {i} {kind} {name}: {tuple(mine.shape)}, not {expected.shape}")
                elif expected.is_floating_point() and not torch.allclose(mine, expected, 1e-8, 1e-10, equal_nan=True):
                    found.append(f"rank {rank} storage {i} {kind} {name}: {(mine - expected).abs().max()}")
        return found

    def compared(self, kind: str) -> int:
        """How many storages of a kind `wrong` compares on rank 0."""
        return sum(self.whole.kinds.get(i, ("activation", ""))[0] == kind for i in self.storages[0])

    # rows by expert

    def _counts(self, block: Block, of: Of) -> list[list[int]]:
        """[rank][expert] rows that the rank brings in this layer."""
        products = [op for op in block.ops if op.name == "aten._grouped_mm.default"]
        offs = of[products[0].operand("offs").slot]
        ends = [[0, *self.storages[rank][offs].tolist()] for rank in range(self.ranks)]
        return [[e - s for s, e in itertools.pairwise(own)] for own in ends]

    def _ends(self, op: Op, of: Of, rank: int) -> Tensor:
        """Where rows of each of the rank's experts end, of all ranks' tokens."""
        offs = of[op.operand("offs").slot]
        return self._local_ends([self.storages[r][offs] for r in range(self.ranks)], rank)

    def _local_ends(self, ends: list[Tensor], rank: int) -> Tensor:
        assert all(len(own) == self.experts for own in ends)
        counts = torch.stack([own.diff(prepend=own.new_zeros(1)) for own in ends]).sum(0)
        return self.slice(counts, rank).cumsum(0)

    def _exchange(self, block: Block, op: Op, of: Of) -> None:
        given, result = of[op.inputs[0].slot], of[op.outputs[0].slot]
        dispatch = op.attr("role") == "dispatch"
        assert op.attr("ranks") == self.ranks
        if dispatch:
            self.inside.add(result)
        if self.rows == 0:
            sources = [self._view(self.storages[r][given], op.inputs[0], None) for r in range(self.ranks)]
            self._regroup(sources, op.outputs[0], result, dispatch)
            return
        value = op.inputs[0]
        assert value.shape[0] == self.rows
        counts = self._counts(block, of)
        width = math.prod(value.shape[1:])  # type: ignore[arg-type]
        pieces: dict[tuple[int, int, int], Tensor] = {}  # (owner, source, expert)
        for rank in range(self.ranks):
            flat = self.storages[rank][given].view(-1, width)
            sizes = self._sizes(counts, rank, dispatch)
            assert len(flat) == sum(n for _, n in sizes), "rows of the other side"
            for (name, _), piece in zip(sizes, flat.split([n for _, n in sizes]), strict=True):
                pieces[name] = piece
        for rank in range(self.ranks):
            wanted = self._sizes(counts, rank, not dispatch)
            self.storages[rank][result] = torch.cat([pieces[name] for name, _ in wanted]).reshape(-1).clone()

    def _sizes(self, counts: list[list[int]], rank: int, brought: bool) -> list[tuple[tuple[int, int, int], int]]:
        """((owner, source, expert), rows) in order, of what a rank brings or of what its experts hold."""
        if brought:
            return [((e // self.own, rank, e), counts[rank][e]) for e in range(self.experts)]
        mine = range(rank * self.own, (rank + 1) * self.own)
        return [((rank, r, e), counts[r][e]) for e in mine for r in range(self.ranks)]

    def _regroup(self, sources: list[Tensor], value: Value, result: int, dispatch: bool) -> None:
        """Every expert meets every token: [experts, tokens, ..] <-> [own experts, ranks * tokens, ..]."""
        n, own, width = self.ranks, self.own, cast("int", value.shape[-1])
        for rank in range(n):
            if dispatch:
                parts = [s.reshape(n, own, -1, width)[rank] for s in sources]
                out = torch.stack(parts, 1)
            else:
                out = torch.cat([s.reshape(own, n, -1, width)[:, rank] for s in sources])
            self.storages[rank][result] = out.reshape(-1).clone()

    # one op on one rank

    def _op(self, block: Block, op: Op, segment: Segment, rank: int) -> None:
        of, inside = segment.storages, op.attr("load") is not None
        rows, ends = None, None
        if inside and self.rows:
            product = next(o for o in block.ops if o.name == "aten._grouped_mm.default")
            ends = self._ends(product, of, rank)
            rows = int(ends[-1])
        inputs = []
        creates = op.name.split(".")[1] in ("new_zeros", "new_empty", "empty_like", "zeros_like")
        for name, value in zip(op.operands, op.inputs, strict=True):
            if inside and name == "offs":
                assert value.shape == (self.own,)
                assert ends is not None
                inputs.append(ends)
            elif inside and self.rows and value.dtype == "i64" and self.rows in value.shape:  # the expert of each row
                assert ends is not None
                inputs.append(torch.arange(self.own).repeat_interleave(ends.diff(prepend=ends.new_zeros(1))))
            else:
                storage = of[value.slot]
                if storage not in self.storages[rank]:
                    self.storages[rank][storage] = self.whole.machines[rank]._new(segment.block, value)
                if inside and self.rows not in value.shape:
                    self.slices.add(storage)
                if self.rows and not creates and self.rows in value.shape:
                    assert (storage in self.inside) == inside, f"{op.name} in {op.module}: rows of the other side"
                flat = self.storages[rank][storage]
                inputs.append(torch.zeros(cast("Of", value.shape)) if creates else self._view(flat, value, rows))
        self._call(op, inputs, of, rank, rows, inside)

    def _view(self, flat: Tensor, value: Value, rows: int | None) -> Tensor:
        shape: list[int] = list(value.shape)  # type: ignore[arg-type]
        if rows is not None:
            shape = [rows if n == self.rows else n for n in shape]
        return flat.as_strided(shape, value.strides, value.offset)  # type: ignore[arg-type]

    def _call(self, op: Op, inputs: list[Tensor], of: Of, rank: int, rows: int | None, inside: bool) -> None:
        views = bool(inputs) and all(v.slot == op.inputs[0].slot for v in op.outputs)
        in_place = op.name.split(".")[1].endswith("_")
        if inside:
            self.inside.update(of[v.slot] for v in op.outputs)
        if in_place:
            interpreter.call(op, inputs)
        if in_place or views:
            return
        changed: dict[str, Any] = {}
        for name in ("size", "input_sizes"):
            attr = op.attr(name)
            if rows is not None and isinstance(attr, tuple):
                changed[name] = [rows if n == self.rows else n for n in attr]
        for value, result in zip(op.outputs, interpreter.call(op, inputs, **changed), strict=True):
            storage = of[value.slot]
            shape = [rows if rows is not None and n == self.rows else n for n in value.shape]
            if not result.numel() and 0 not in shape:
                continue  # what the interpreter does not work out (gradients of attention sinks)
            assert list(result.shape) == shape, f"{op.name} in {op.module}: {tuple(result.shape)}, not {shape}"
            extent = 1 + sum((n - 1) * s for n, s in zip(shape, value.strides, strict=True))  # type: ignore[operator, misc]
            extent = extent if result.numel() else 0  # a rank to which no row goes
            if storage not in self.storages[rank]:
                dtype = interpreter.kind(value.dtype)
                self.storages[rank][storage] = torch.zeros(extent + value.offset, dtype=dtype)  # type: ignore[operator]
            self._view(self.storages[rank][storage], value, rows).copy_(result)
