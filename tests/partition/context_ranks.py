"""All ranks of context parallelism at once, on real numbers: each runs the program, messages pass between them.

A rank holds the positions of its chunks: zigzag for a ring, one after the other for Ulysses. What the loader would
give it (ids, positions, shifted labels: the integers outside layers) is its slice of what the whole program has.
Attention is done as the program says: block by block over what travelled, or on the heads that the all-to-all brought.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from torchperf.graph.graph import Graph
from torchperf.graph.op import Op


def _load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


interpreter = _load("interpreter")


def positions(kind: str, rank: int, ranks: int, seq: int) -> list[int]:
    """Of the whole sequence, those that a rank holds."""
    if kind == "ulysses":
        return list(range(rank * seq // ranks, (rank + 1) * seq // ranks))
    chunk = seq // (2 * ranks)
    return [c * chunk + i for c in (rank, 2 * ranks - 1 - rank) for i in range(chunk)]


class Ranks:
    """`program` on every rank; `local` is what it was made of, `whole` the program of the whole sequence, run."""

    def __init__(self, program: Graph, local: Graph, whole: Any, kind: str, ranks: int, seq: int) -> None:
        self.program, self.kind, self.ranks, self.seq = program, kind, ranks, seq
        self.own = [torch.tensor(positions(kind, r, ranks, seq)) for r in range(ranks)]
        self.whole = whole
        self.at = {id(op): (b, i) for b, block in enumerate(local.blocks) for i, op in enumerate(block.ops)}
        self.machines = [interpreter.Machine(program) for _ in range(ranks)]
        self.arrived: list[list[tuple[Tensor, Tensor]]] = [[] for _ in range(ranks)]
        self.pairs = [0] * ranks  # of the last call of attention, per batch and head

    def run(self) -> Ranks:
        for segment in self.program.segments:
            block = self.program.blocks[segment.block]
            for op in block.ops:
                self._inputs(segment.block, op, segment.storages)
                views = [[m._view(segment.block, v, segment.storages) for v in op.inputs] for m in self.machines]
                results = self._results(op, views, bool(block.module))
                for machine, own in zip(self.machines, results, strict=True):
                    for value, result in zip(op.outputs, own, strict=False):
                        if result is not None and result.numel():
                            machine._view(segment.block, value, segment.storages).copy_(result)
        return self

    def _inputs(self, b: int, op: Op, of: tuple[int, ...]) -> None:
        """Storages that are met for the first time: parameters as in the whole program, inputs sliced."""
        for value in op.inputs:
            storage = self.program.blocks[b].storages[value.slot]
            if storage.kind in ("param", "buffer", "input") and of[value.slot] in self.whole.storages:
                known = self.whole.initial[of[value.slot]]
                for rank, machine in enumerate(self.machines):
                    if of[value.slot] not in machine.storages:
                        numel = int(storage.nbytes) * 8 // interpreter.BITS[value.dtype]
                        machine.storages[of[value.slot]] = self.slice(known, (numel,), rank).clone()

    def slice(self, whole: Tensor, shape: tuple[int, ...], rank: int) -> Tensor:
        """The rank's positions along every dim that is `ranks` times as long in the whole; batch is outside.

        Labels that were padded by one to be shifted: those behind the rank's positions.
        """
        for d, n in enumerate(shape):
            if whole.shape[d] == self.seq + 1 != n:
                whole = whole.index_select(d, torch.cat([torch.zeros(1, dtype=torch.int64), self.own[rank] + 1]))
            elif whole.shape[d] != n:
                outer = whole.shape[d] // self.seq
                index = (torch.arange(outer)[:, None] * self.seq + self.own[rank][None]).reshape(-1)
                whole = whole.index_select(d, index)
        return whole

    def _results(self, op: Op, views: list[list[Tensor]], inside: bool) -> list[list[Tensor]]:
        name = op.name.split(".")[1]
        if name == "send_recv":
            self._send(views, op.attr("ranks"))
            return [[] for _ in views]
        if name == "all_to_all":
            return [[t] for t in self._exchange(op, [v[0] for v in views])]
        if op.attr("ring"):
            return [self._ring(op, rank, views) for rank in range(self.ranks)] if name == "attention" else self._grads(
                op, views
            )  # fmt: skip
        if op.inputs and not name.endswith("_") and all(v.slot == op.inputs[0].slot for v in op.outputs):
            return [[] for _ in views]  # a view
        floats = [interpreter.kind(value.dtype).is_floating_point for value in (*op.inputs, *op.outputs)]
        if not inside and not any(floats):
            b, i = self.at[id(op)]
            truth = self.whole.writes[b, i]
            return [
                [self.slice(t, v.shape, rank) for t, v in zip(truth, op.outputs, strict=True)]  # type: ignore[arg-type]
                for rank in range(self.ranks)
            ]
        results: list[list[Tensor]] = []
        for rank, held in enumerate(views):
            own = held if inside or id(op) not in self.at else self._given(op, held, rank)
            if name.endswith("_"):
                interpreter.call(op, own)
                results.append([])
            elif name == "nll_loss_forward":
                total, valid = self.whole.writes[self.at[id(op)]][1], own[1] != op.attr("ignore_index", -100)
                picked = own[0].gather(1, own[1].clamp(min=0)[:, None])[:, 0]
                results.append([-(picked * valid).sum() / total, total])
            else:
                results.append(interpreter.call(op, own))
        return results

    def _given(self, op: Op, held: list[Tensor], rank: int) -> list[Tensor]:
        """The inputs of an op outside layers, with the rank's own integers."""
        truth = self.whole.reads[self.at[id(op)]]
        return [
            t if t.is_floating_point() else self.slice(true, tuple(t.shape), rank)
            for t, true in zip(held, truth, strict=True)
        ]

    def _send(self, views: list[list[Tensor]], ranks: int) -> None:
        """n - 1 times, each rank passes on what it had last: after step j it holds the keys of rank r - j."""
        assert ranks == self.ranks
        held = [(k, v) for k, v, *_ in views]
        self.arrived = [[pair] for pair in held]
        for _ in range(ranks - 1):
            held = [held[r - 1] for r in range(ranks)]
            for r in range(ranks):
                self.arrived[r].append(held[r])

    def _exchange(self, op: Op, sent: list[Tensor]) -> list[Tensor]:
        there = op.outputs[0].shape[1] < op.inputs[0].shape[1]  # type: ignore[operator]
        cut, join = (1, 2) if there else (2, 1)
        pieces = [t.chunk(self.ranks, cut) for t in sent]
        return [torch.cat([pieces[s][r] for s in range(self.ranks)], join) for r in range(self.ranks)]

    def _blocks(self, op: Op, rank: int, q: Tensor) -> Any:
        """(source, rows, columns, mask) of each block of a rank's ring."""
        n, c = q.shape[2], q.shape[2] // 2
        self.pairs[rank] = 0
        for step, (key, _) in enumerate(self.arrived[rank]):
            source, m = (rank - step) % self.ranks, key.shape[2]
            rows, columns, mask = slice(0, n), slice(0, m), torch.ones(n, m, dtype=torch.bool)
            if op.attr("is_causal"):
                if step == 0:
                    mask = mask.tril()
                elif source < rank:
                    columns = slice(0, m // 2)
                else:
                    rows = slice(c, n)
            mask = mask[rows, columns]
            self.pairs[rank] += int(mask.sum())
            yield step, source, rows, columns, mask

    def _scores(self, op: Op, q: Tensor, k: Tensor, mask: Tensor) -> Tensor:
        k = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
        scores = q @ k.transpose(2, 3) * (op.attr("scale") or q.shape[-1] ** -0.5)
        return scores.masked_fill(~mask, -torch.inf)

    def _ring(self, op: Op, rank: int, views: list[list[Tensor]]) -> list[Tensor]:
        """Out and logsumexp, merged block by block."""
        q = views[rank][0]
        out = torch.zeros(*q.shape[:3], views[rank][2].shape[-1], dtype=q.dtype)
        total = torch.full(q.shape[:3], -torch.inf, dtype=q.dtype)
        for step, _, rows, columns, mask in self._blocks(op, rank, q):
            k, v = (t[:, :, columns] for t in self.arrived[rank][step])
            scores = self._scores(op, q[:, :, rows], k, mask)
            lse = scores.logsumexp(-1)
            block = scores.softmax(-1) @ v.repeat_interleave(q.shape[1] // v.shape[1], 1)
            new = torch.logaddexp(total[:, :, rows], lse)
            old = (total[:, :, rows] - new).exp()[..., None]
            out[:, :, rows] = out[:, :, rows] * old + block * (lse - new).exp()[..., None]
            total[:, :, rows] = new
        return [out, total]

    def _grads(self, op: Op, views: list[list[Tensor]]) -> list[list[Tensor]]:
        """dQ stays, what a block adds to dK and dV goes home to the rank whose keys they are."""
        names = op.operands
        given = [dict(zip(names, own, strict=True)) for own in views]
        found = [[torch.zeros_like(g[n]) for n in ("query", "key", "value")] for g in given]
        scale = op.attr("scale") or given[0]["query"].shape[-1] ** -0.5
        for rank, g in enumerate(given):
            q, grad, group = g["query"], g["grad_out"], g["query"].shape[1] // g["key"].shape[1]
            delta = (grad * g["out"]).sum(-1, keepdim=True)
            for step, source, rows, columns, mask in self._blocks(op, rank, q):
                k, v = (t[:, :, columns] for t in self.arrived[rank][step])
                probs = (self._scores(op, q[:, :, rows], k, mask) - g["logsumexp"][:, :, rows, None]).exp()
                d_probs = grad[:, :, rows] @ v.repeat_interleave(group, 1).transpose(2, 3)
                d_scores = probs * (d_probs - delta[:, :, rows]) * scale
                found[rank][0][:, :, rows] += d_scores @ k.repeat_interleave(group, 1)
                d_k, d_v = d_scores.transpose(2, 3) @ q[:, :, rows], probs.transpose(2, 3) @ grad[:, :, rows]
                found[source][1][:, :, columns] += d_k.unflatten(1, (-1, group)).sum(2)
                found[source][2][:, :, columns] += d_v.unflatten(1, (-1, group)).sum(2)
        return found  # type: ignore[return-value]


class Whole(interpreter.Machine):  # type: ignore[misc, name-defined]
    """The whole program, which remembers what each storage held at first."""

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph)
        self.initial: dict[int, Tensor] = {}

    def _view(self, b: int, value: Any, of: tuple[int, ...]) -> Tensor:
        found: Tensor = super()._view(b, value, of)
        self.initial.setdefault(of[value.slot], self.storages[of[value.slot]].clone())
        return found
