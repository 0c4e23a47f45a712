"""Every op of a placed program on every rank's own part, against slices of the truth.

What an op reads follows from the states that placement gives it: a slice where a dim is split, a random share of the
sum where it is Partial, the rows of a rank's experts, a slice of the sequence. What it writes must be, by its own
states, the slice of the true output, or sum to it over the ranks.
"""

from __future__ import annotations

import importlib.util
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchperf.partition.algebra import Dim, Dims, flatten, leaves, size_of
from torchperf.partition.placement import Placement
from torchperf.partition.rules import base_name
from torchperf.partition.state import OpPlaced, State

_spec = importlib.util.spec_from_file_location("interpreter", Path(__file__).with_name("interpreter.py"))
assert _spec is not None
assert _spec.loader is not None
interpreter = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(interpreter)
SAME = {"t", "transpose", "permute", "detach", "alias", "clone", "unsqueeze", "squeeze", "_to_copy"}


@dataclass
class Report:
    """checked, skipped: ops by name; wrong: (block, op, name, error)."""

    checked: Counter[str] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)
    wrong: list[tuple[Any, ...]] = field(default_factory=list)


class Lockstep:
    """Checks one placement."""

    def __init__(self, placement: Placement, machine: Any = None) -> None:
        self.placement, self.split = placement, placement.split
        self.graph = placement.prepared.factors.graph
        self.machine = machine or interpreter.Machine(self.graph).run()
        self.ends: Tensor | None = None

    def run(self) -> Report:
        report = Report()
        for b, block in enumerate(self.placement.blocks):
            for i, placed in enumerate(block.ops):
                if placed is not None:
                    self._check(b, i, placed, report)
        return report

    def coordinate(self, rank: int, mask: int) -> int:
        """The rank's place within the bits of `mask`."""
        place, at = 0, rank
        for bit, size in enumerate(self.split.sizes):
            own, at = at % size, at // size
            if mask >> bit & 1:
                place = place * size + own
        return place

    def own(self, dim: Dim, rank: int, whole: int, sequence: bool) -> list[int]:
        """The positions of a dim that a rank holds."""
        positions = [0]
        for factor in flatten(dim):
            if factor.kind == "sum":
                part, at = [], 0
                for segment in factor.parts:
                    part += [at + p for p in self.own(segment, rank, whole, sequence)]
                    at += size_of(segment)
            else:
                mask = self.split.chosen[id(factor)][1] & ~whole if id(factor) in self.split.chosen else 0
                if sequence and self.split.is_sequence(factor):
                    mask = self.split.full
                n = factor.size // self.split.degree(mask)
                c = self.coordinate(rank, mask) if mask else 0
                part = list(range(c * n, (c + 1) * n))
            positions = [p * factor.size + q for p in positions for q in part]
        return positions

    def slice(self, t: Tensor, dims: Dims, rank: int, whole: int = 0, sequence: bool = False) -> Tensor:
        for d, dim in enumerate(dims):
            if dim:
                t = t.index_select(d, torch.tensor(self.own(dim, rank, whole, sequence), dtype=torch.int64))
        return t

    def _rows(self, t: Tensor, dims: Dims, state: State, rank: int) -> Tensor:
        """Zero outside the rows of the rank's experts."""
        if not state.ragged or self.ends is None:
            return t
        d = next(d for d, dim in enumerate(dims) if any(id(leaf) in self.placement.rows for leaf in leaves(dim)))
        n = len(self.ends) // self.split.degree(state.ragged)
        c = self.coordinate(rank, state.ragged)
        starts = [0, *self.ends.tolist()]
        keep = torch.zeros(t.shape[d], dtype=t.dtype)
        keep[starts[c * n] : starts[(c + 1) * n]] = 1
        return t * keep.view([-1 if j == d else 1 for j in range(t.dim())])

    def _check(self, b: int, i: int, placed: OpPlaced, report: Report) -> None:
        op, facts = self.graph.blocks[b].ops[i], self.placement.prepared.factors.blocks[b][i]
        name = base_name(op.name)
        reads, writes = self.machine.reads[b, i], self.machine.writes[b, i]
        if name == "_grouped_mm":
            self.ends = reads[op.operands.index("offs")]
        statistic = any(self.split.of(dim)[0] & ~placed.whole for dim, _ in facts.statistic)
        lookup = facts.kind == "lookup" and name != "embedding" and any(map(self.split.mask_of, facts.contracted))
        plain = facts.kind == "create" or name.endswith("_") or name in ("as_strided", "nll_loss_backward", "copy")
        if statistic or lookup or plain or not op.outputs:
            report.skipped[name] += 1
            return
        ranks = range(self.split.ranks)
        sequence = any(s.sequence for s in placed.inputs) or any(s.sequence for s in placed.outputs)
        passing = any(s.partial for s in placed.inputs)
        sequence = sequence and not (passing and facts.linear == "additive")
        shares = [self._shares(t, s) for t, s in zip(reads, placed.inputs, strict=True)]
        got: list[list[Tensor]] = []
        try:
            for rank in ranks:
                inputs = [self._input(k, rank, facts, placed, shares, reads, sequence) for k in range(len(reads))]
                got.append(self._run(b, i, facts, placed, inputs, rank, sequence))
        except NotImplementedError:
            report.skipped[name] += 1
            return
        for j, truth in enumerate(writes):
            state = placed.outputs[j]
            mask = state.partial | state.ragged
            error = 0.0
            for rank in ranks:
                group = [
                    r
                    for r in ranks
                    if self.coordinate(r, self.split.full & ~mask) == self.coordinate(rank, self.split.full & ~mask)
                ]
                parts = [got[r][j].double() for r in group] if mask else [got[rank][j].double()]
                total = torch.stack(parts).sum(0)
                expected = self.slice(truth, facts.outputs[j], rank, 0, state.sequence).double()
                if total.shape == truth.shape != expected.shape:  # made of what is whole: the rank keeps its slice
                    total = self.slice(total, facts.outputs[j], rank, 0, state.sequence)
                if total.shape != expected.shape:
                    report.wrong.append((b, i, name, tuple(total.shape), tuple(expected.shape)))
                    return
                if expected.numel():
                    error = max(error, (total - expected).nan_to_num(0, 0, 0).abs().max().item())
            if error > 1e-8 * max(1.0, truth.double().nan_to_num(0, 0, 0).abs().max().item() if truth.numel() else 1.0):
                report.wrong.append((b, i, name, j, error))
                return
        report.checked[name] += 1

    def _shares(self, t: Tensor, state: State) -> list[Tensor]:
        """A random split of the sum over the bits of `state.partial`."""
        if not state.partial:
            return [t]
        shares = [torch.randn_like(t) for _ in range(self.split.degree(state.partial) - 1)]
        return [*shares, t - torch.stack(shares).sum(0)]

    def _input(
        self, k: int, rank: int, facts: Any, placed: OpPlaced, shares: list[list[Tensor]], reads: list[Tensor],
        sequence: bool,
    ) -> Tensor:  # fmt: skip
        state, dims = placed.inputs[k], facts.inputs[k]
        t = shares[k][self.coordinate(rank, state.partial)] if state.partial else reads[k]
        once = 0  # bits over which this operand must count once
        for out in placed.outputs:
            once |= out.partial
        if facts.linear == "additive" and not state.partial and any(s.partial for s in placed.inputs):
            bits = 0
            for s in placed.inputs:
                bits |= s.partial
            if state.sequence:  # the rank's slice, in its place in the sum
                whole = torch.zeros_like(t)
                for d, dim in enumerate(dims):
                    if any(self.split.is_sequence(leaf) for leaf in leaves(dim)):
                        own = torch.tensor(self.own(dim, rank, self.split.full, True))
                        whole.index_copy_(d, own, t.index_select(d, own))
                return whole
            if self.coordinate(rank, bits):
                t = torch.zeros_like(t)
        elif facts.linear == "additive" and state.partial:
            others = 0
            for s in placed.inputs:
                others |= s.partial
            if others & ~state.partial and self.coordinate(rank, others & ~state.partial):
                t = torch.zeros_like(t)
        bias = "bias" if facts.op.name.startswith("aten.convolution.") else "self"
        affine = facts.op.name.startswith(("aten.addmm", "aten.baddbmm", "aten.convolution."))
        if affine and facts.op.operands[k] == bias and once and self.coordinate(rank, once):
            t = torch.zeros_like(t)
        t = self._replicated_once(t, k, facts, rank)
        return self._rows(self.slice(t, dims, rank, placed.whole, sequence), dims, state, rank)

    def _replicated_once(self, t: Tensor, k: int, facts: Any, rank: int) -> Tensor:
        """A contracted sum with segments that are whole on every rank: those count on one rank only."""
        if facts.kind != "matmul" and facts.linear != "linear":
            return t
        if k != (len(facts.inputs) - 1 if facts.kind == "matmul" else 0):
            return t
        for contracted in facts.contracted[0]:
            for d, own in enumerate(facts.inputs[k]):
                if self.split.mixed(contracted) and flatten(own) == flatten(contracted):
                    weights = torch.tensor(self.weights(contracted, rank), dtype=t.dtype)
                    t = t * weights.view([-1 if j == d else 1 for j in range(t.dim())])
        return t

    def weights(self, dim: Dim, rank: int) -> list[int]:
        """1 where this rank is the one that counts a position, 0 where another does."""
        out = [1]
        for factor in flatten(dim):
            own = [1] * factor.size
            if factor.kind == "sum":
                own = []
                mask = self.split.of([factor])[0]
                for segment in factor.parts:
                    lacking = mask & ~self.split.of(segment)[0]
                    counts = not lacking or self.coordinate(rank, lacking) == 0
                    own += [w * counts for w in self.weights(segment, rank)]
            out = [x * y for x in out for y in own]
        return out

    def _run(
        self, b: int, i: int, facts: Any, placed: OpPlaced, inputs: list[Tensor], rank: int, sequence: bool
    ) -> list[Tensor]:
        op, name = facts.op, base_name(facts.op.name)
        call: Callable[..., list[Tensor]] = interpreter.call
        shapes = [
            [len(self.own(dim, rank, 0, sequence or s.sequence)) for dim in dims]
            for dims, s in zip(facts.outputs, placed.outputs, strict=True)
        ]
        if name in SAME:
            return call(op, inputs)
        if name in ("view", "_unsafe_view", "reshape"):
            return [inputs[0].reshape(shapes[0])]
        if name == "expand":
            return [inputs[0].expand(shapes[0])]
        if name in ("split", "split_with_sizes"):
            d = op.attr("dim", 0) % inputs[0].dim()
            return list(inputs[0].split([s[d] for s in shapes], d))
        if name in ("slice", "slice_backward"):
            if op.attr("step", 1) != 1:
                raise NotImplementedError
            wide, narrow = (facts.inputs[0], op.outputs[0]) if name == "slice" else (facts.outputs[0], op.inputs[0])
            value = op.inputs[0] if name == "slice" else op.outputs[0]
            d = op.attr("dim", 0) % len(value.shape)
            start = op.attr("start") or 0
            start = start + value.shape[d] if start < 0 else start
            own = self.own(wide[d], rank, placed.whole, sequence)
            before = sum(p < start for p in own)
            inside = sum(start <= p < start + narrow.shape[d] for p in own)
            if name == "slice":
                return [inputs[0].narrow(d, before, inside)]
            out = inputs[0].new_zeros(shapes[0])
            out.narrow(d, before, inside).copy_(inputs[0])
            return [out]
        if name == "embedding":
            own = self.own(facts.inputs[0][0], rank, placed.whole, sequence)
            hit = (inputs[1] >= own[0]) & (inputs[1] <= own[-1])
            rows = torch.nn.functional.embedding((inputs[1] - own[0]).clamp(0, len(own) - 1), inputs[0])
            return [rows * hit[..., None]]
        if name == "embedding_dense_backward":
            whole = call(op, inputs)[0]
            own = self.own(facts.outputs[0][0], rank, 0, sequence)
            return [whole.index_select(0, torch.tensor(own))]
        if name == "nll_loss_forward":
            own = self.own(facts.inputs[0][1], rank, placed.whole, sequence)
            target = inputs[1]
            hit = (target >= own[0]) & (target <= own[-1])
            picked = inputs[0].gather(1, (target - own[0]).clamp(0, len(own) - 1)[:, None])[:, 0]
            total = self.machine.writes[b, i][1]
            valid = target != op.attr("ignore_index", -100)
            rows = valid.sum().double() if placed.outputs[1].partial else total
            return [-(picked * hit * valid).sum() / total, rows]
        if name == "mean":
            dims = op.attr("dim")
            full = math.prod(op.inputs[0].shape) / max(1, op.outputs[0].numel)
            local = inputs[0].numel() / max(1, math.prod(shapes[0]))
            return [t * local / full for t in call(op, inputs, dim=list(dims) if dims is not None else None)]
        if name == "_grouped_mm":
            experts = self.own(facts.ragged, rank, placed.whole, sequence)
            return call(op, inputs, own=range(experts[0], experts[-1] + 1))
        changed = {key: shapes[0] for key in ("size", "input_sizes") if op.attr(key) is not None}
        if op.attr("normalized_shape") is not None:
            changed["normalized_shape"] = list(
                inputs[1 if "backward" in name else 0].shape[-len(op.attr("normalized_shape")) :]
            )
        return call(op, inputs, **changed)
