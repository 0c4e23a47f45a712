"""Tensor-parallel ranks side by side on real numbers, through every layer of a placed program: see `Ranks`.

What enters a layer from outside is cut from the truth as placement says; what it makes is compared where it leaves.
Between, each rank has what its own program computed: rows of experts in its own order, collectives carried out.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchperf.graph.graph import Graph, Segment
from torchperf.graph.op import Op
from torchperf.graph.tensor import Value
from torchperf.partition.algebra import size_of
from torchperf.partition.local import starred
from torchperf.partition.state import WHOLE
from torchperf.partition.tensor_parallel import TensorParallel

_spec = importlib.util.spec_from_file_location("lockstep", Path(__file__).with_name("lockstep.py"))
assert _spec is not None
assert _spec.loader is not None
lockstep = sys.modules.setdefault(_spec.name, importlib.util.module_from_spec(_spec))
_spec.loader.exec_module(lockstep)
interpreter = lockstep.interpreter


class Ranks:
    """Runs `found.program` on all ranks of its axis, `batch` sequences of `seq` tokens.

    wrong     what differs from the truth
    compared  names of gradients, and the number of activations that left a layer
    """

    def __init__(self, graph: Graph, found: TensorParallel, batch: int, seq: int) -> None:
        self.graph, self.found, self.batch, self.seq = graph, found, batch, seq
        self.placement = found.plan.placement
        self.truth = interpreter.Machine(graph).run()
        self.slices = lockstep.Lockstep(self.placement, self.truth)
        self.ranks = self.placement.split.ranks
        self.names = starred(graph)
        self.own: list[dict[int, Tensor]] = [{} for _ in range(self.ranks)]
        self.whole: set[int] = set()  # storages that every rank has from outside
        self.users: dict[int, set[str]] = {}  # storage -> modules of the segments that use it
        for segment in graph.segments:
            for storage in segment.storages:
                self.users.setdefault(storage, set()).add(segment.module)
        self.wrong: list[str] = []
        self.gradients: list[str] = []
        self.left = 0

    def run(self) -> Ranks:
        for k, segment in enumerate(self.found.program.segments):
            block = self.found.program.blocks[segment.block]
            if block.module:
                self._enter(self.graph.segments[k])
                for op in block.ops:
                    self._op(op, segment)
                self._leave(self.graph.segments[k])
        return self

    def _enter(self, segment: Segment) -> None:
        """Cut what the layer reads from the truth."""
        placed, block = self.placement.blocks[segment.block], self.graph.blocks[segment.block]
        made: set[int] = set()
        read: list[int] = []
        for op in block.ops:
            read += [v.slot for v in op.inputs if v.slot not in made and v.slot not in read]
            made.update(v.slot for v in op.outputs)
        for slot in read:
            storage = segment.storages[slot]
            if storage in self.own[0]:
                continue
            flat = self.truth.storages[storage]
            state, (value, dims) = placed.entry.get(slot, (WHOLE, (None, [])))
            assert not state.partial
            if block.storages[slot].kind == "param":
                dims = self.placement.prepared.factors.parameters[block.storages[slot].name or ""]
                flat = flat.view([size_of(dim) for dim in dims])
            elif value is not None:
                flat = flat.as_strided(value.shape, value.strides, value.offset)
            elif block.storages[slot].kind == "activation":
                self.whole.add(storage)
            for rank in range(self.ranks):
                cut = self.slices.slice(flat, dims, rank, 0, state.sequence) if dims else flat
                self.own[rank][storage] = cut.reshape(-1).clone()

    def _leave(self, segment: Segment) -> None:
        """Compare gradients, and what the next layer reads along the sequence."""
        block, factors = self.graph.blocks[segment.block], self.placement.prepared.factors
        for slot, (kind, name) in enumerate((s.kind, s.name or "") for s in block.storages):
            storage = segment.storages[slot]
            if kind == "grad":
                dims = factors.parameters[name]
                shape = [size_of(dim) for dim in dims]
                truth, parts = self.truth.storages[storage].view(shape), [own[storage] for own in self.own]
                if name in self.experts:
                    self._same(f"sum of {name}", torch.stack(parts).sum(0), truth.reshape(-1))
                else:
                    for rank, part in enumerate(parts):
                        self._same(f"{name} on {rank}", part, self.slices.slice(truth, dims, rank).reshape(-1))
                self.gradients.append(name)
        for slot, crossing in self.placement.blocks[segment.block].exit.items():
            storage = segment.storages[slot]
            if crossing is None or block.storages[slot].kind == "grad" or self.users[storage] == {segment.module}:
                continue
            state, (value, dims) = crossing
            assert state.sequence
            truth = self.truth.storages[storage].as_strided(value.shape, value.strides, value.offset)
            for rank, own in enumerate(self.own):
                mine = self.slices.slice(truth, dims, rank, 0, True).reshape(-1)
                self._same(f"{block.phase} of {segment.module} on {rank}", own[storage], mine)
            self.left += 1

    @property
    def experts(self) -> set[str]:
        """Starred names of the experts' parameters."""
        by_first = {p.names[0]: self.names.get(p.storage, "") for p in self.graph.facts.parameters}
        return {by_first[name] for name in self.found.experts}

    def _same(self, what: str, mine: Tensor, truth: Tensor) -> None:
        if mine.shape != truth.shape:
            self.wrong.append(f"{what}: {tuple(mine.shape)}, not {tuple(truth.shape)}")
        elif not torch.allclose(mine, truth, 1e-8, 1e-10):
            self.wrong.append(f"{what}: off by {(mine - truth).abs().max()}")

    def _op(self, op: Op, segment: Segment) -> None:
        if op.name.startswith("torchperf.") and op.attr("axis"):
            self._collective(op, segment)
            return
        for rank in range(self.ranks):
            inputs = [self._view(v, segment, rank) for v in op.inputs]
            if rank and self._sums(op, segment):
                inputs[0] = torch.zeros_like(inputs[0])  # a bias counts once
            in_place = op.name.split(".")[1].endswith("_")
            if in_place:
                interpreter.call(op, inputs)
            elif not (inputs and all(v.slot == op.inputs[0].slot for v in op.outputs)):
                for value, result in zip(op.outputs, interpreter.call(op, inputs), strict=True):
                    if not result.numel():
                        continue
                    assert tuple(result.shape) == value.shape, f"{op.name} in {op.module}: {tuple(result.shape)}"
                    self._view(value, segment, rank, result.dtype).copy_(result)

    def _sums(self, op: Op, segment: Segment) -> bool:
        """Whether each rank makes a part of a sum, and adds a bias that it has whole."""
        name = self.found.program.blocks[segment.block].storages[op.inputs[-1].slot].name if op.inputs else None
        dims = self.placement.prepared.factors.parameters.get(name or "")
        return op.name == "aten.addmm.default" and dims is not None and bool(self.placement.split.of(dims[1])[0])

    def _view(self, value: Value, segment: Segment, rank: int, dtype: Any = torch.float64) -> Tensor:
        storage, own = segment.storages[value.slot], self.own[rank]
        extent = 1 + sum((n - 1) * s for n, s in zip(value.shape, value.strides, strict=True)) + value.offset  # type: ignore[operator, misc]
        if storage not in own:
            own[storage] = torch.zeros(extent, dtype=dtype)
        offset: Any = value.offset
        part = self.seq // self.ranks
        if storage in self.whole and part in value.shape and len(own[storage]) > extent:  # its slice of the whole
            offset += rank * part * value.strides[value.shape.index(part)]  # type: ignore[operator]
        return own[storage].as_strided(value.shape, value.strides, offset)  # type: ignore[arg-type]

    def _collective(self, op: Op, segment: Segment) -> None:
        sent = [self._view(op.inputs[0], segment, rank) for rank in range(self.ranks)]
        kind, given, made = op.name.removeprefix("torchperf."), op.inputs[0], op.outputs[0]
        if kind == "all_reduce":
            received = [torch.stack(sent).sum(0)] * self.ranks
        else:
            d = next(j for j, (a, b) in enumerate(zip(given.shape, made.shape, strict=True)) if a != b)
            merged = max(given.shape[d], made.shape[d]) == self.batch * self.seq and self.batch > 1  # type: ignore[type-var]
            sent = [t.unflatten(d, (self.batch, -1)) if merged else t for t in sent]
            if kind == "all_gather":
                received = [torch.cat(sent, d + merged)] * self.ranks
            else:
                assert kind == "reduce_scatter"
                received = list(torch.stack(sent).sum(0).chunk(self.ranks, d + merged))
        for rank, t in enumerate(received):
            self._view(made, segment, rank).copy_(t.reshape(made.shape))  # type: ignore[arg-type]
