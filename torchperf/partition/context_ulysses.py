"""Ulysses: an all-to-all gives each rank the whole sequence of some heads, attention runs, another brings it back.

forward    q, k, v [B, H, S/n, D] -> [B, H/n, S, D]; attention; out back
backward   dO there; dQ, dK, dV back. It reads q, k, v, out and logsumexp as they are after the exchange
KV heads   fewer than ranks: each goes to all ranks whose queries share it, and their dK, dV are added up
copies     one a tensor, where its heads are put side by side or taken apart; on the other side pieces lie in order
source     Jacobs et al., DeepSpeed Ulysses, arXiv 2309.14509, section 3
"""

from __future__ import annotations

from dataclasses import replace

from ..graph.errors import TorchperfError
from ..graph.op import Op
from ..graph.tensor import Value
from .context_storages import HEADS, LENGTH, SEQUENCE_FIRST, Group, Scratch, beside, dense, ints


def ulysses(op: Op, group: Group, scratch: Scratch) -> list[Op]:
    """The op on one rank's heads with its all-to-alls; raises TorchperfError where the heads do not divide."""
    check_heads(op, group.ranks, ints(op.operand("query"))[LENGTH] * group.ranks)
    return _Exchange(op, group, scratch).run()


class _Exchange:
    """One call of attention, forward or backward."""

    def __init__(self, op: Op, group: Group, scratch: Scratch) -> None:
        self.op, self.group, self.scratch = op, group, scratch
        self.ops: list[Op] = []
        kv_heads = ints(op.operand("key"))[HEADS]
        self.copies = max(1, group.ranks // kv_heads)  # ranks that share a KV head

    def run(self) -> list[Op]:
        backward = self.op.name.startswith("torchperf.attention_backward")
        own = self._backward() if backward else self._forward()
        back = [self._back(mine, whole) for mine, whole in own]
        return [*self.ops, *(op for ops in back for op in ops)]

    def _forward(self) -> list[tuple[Value, Value]]:
        """The ops up to attention; (a rank's result, what it becomes at home) of each result."""
        op, out, statistic = self.op, self.op.outputs[0], self.op.outputs[1]
        call = statistic.slot
        inputs = []
        for name, value in zip(op.operands, op.inputs, strict=True):
            if name in ("query", "key", "value"):
                target = self.scratch.kept(call, name, value.dtype, self._shape(value, name))
                inputs.append(self._there(value, name, target))
            else:
                inputs.append(self._own(value))
        mine = self.scratch.kept(call, "out", out.dtype, self._shape(out, "out"))
        outputs = (mine, self._statistic(statistic), *op.outputs[2:])
        self.ops.append(replace(op, inputs=tuple(inputs), outputs=outputs))
        return [(mine, out)]

    def _backward(self) -> list[tuple[Value, Value]]:
        op = self.op
        call = op.operand("logsumexp").slot
        inputs = []
        for name, value in zip(op.operands, op.inputs, strict=True):
            if name == "grad_out":
                shape = self._shape(value, name)
                inputs.append(self._there(value, name, self.scratch.new(value.dtype, shape, SEQUENCE_FIRST)))
            elif name in ("query", "key", "value", "out"):
                inputs.append(self.scratch.kept(call, name, value.dtype, self._shape(value, name)))
            else:
                inputs.append(self._statistic(value) if name == "logsumexp" else self._own(value))
        mine = tuple(
            self.scratch.new(value.dtype, self._shape(value, name), SEQUENCE_FIRST)
            for name, value in zip(("query", "key", "value"), op.outputs, strict=False)
        )
        rest = tuple(value if not value.numel else self._own(value) for value in op.outputs[3:])
        self.ops.append(replace(op, inputs=tuple(inputs), outputs=(*mine, *rest)))
        return list(zip(mine, op.outputs[:3], strict=True))

    def _shape(self, value: Value, name: str) -> tuple[int, ...]:
        """Of one rank's heads over the whole sequence."""
        batch, heads, length, width = ints(value)
        copies = self.copies if name in ("key", "value") else 1
        return batch, heads * copies // self.group.ranks, length * self.group.ranks, width

    def _there(self, value: Value, name: str, target: Value) -> Value:
        """Copy into the order of the ranks, KV heads once for each rank that needs them, then exchange."""
        batch, heads, length, width = ints(value)
        copies = self.copies if name in ("key", "value") else 1
        send = self.scratch.new(value.dtype, (batch, heads, copies, length, width))
        strides = (*value.strides[:2], 0, *value.strides[2:])
        source = replace(value, shape=ints(send), strides=strides) if copies > 1 else value
        packed = dense(send.slot, value.dtype, (batch, heads * copies, length, width))
        self._append("aten.clone.default", source, send if copies > 1 else packed)
        self._append("torchperf.all_to_all", packed, target)
        return target

    def _back(self, mine: Value, home: Value) -> list[Op]:
        """Exchange, then put each rank's heads in their place; shared KV heads are summed over those who had them."""
        batch, heads, length, width = ints(home)
        copies = ints(mine)[HEADS] * self.group.ranks // heads
        received = self.scratch.new(home.dtype, (batch, heads * copies, length, width))
        exchange = beside(self.op, "torchperf.all_to_all", (("self", mine),), received, self.group.attrs("ulysses"))
        if copies == 1:
            return [exchange, beside(self.op, "aten.clone.default", (("self", received),), home)]
        apart = dense(received.slot, home.dtype, (batch, heads, copies, length, width))
        total = beside(self.op, "aten.sum.dim_IntList", (("self", apart),), home, (("dim", (2,)),))
        return [exchange, total]

    def _append(self, name: str, source: Value, target: Value) -> None:
        attrs = self.group.attrs("ulysses") if name.startswith("torchperf") else ()
        self.ops.append(beside(self.op, name, (("self", source),), target, attrs))

    def _statistic(self, value: Value) -> Value:
        """logsumexp [B, H, S/n] -> [B, H/n, S], as many bytes in the same storage."""
        batch, heads, length = ints(value)
        return dense(value.slot, value.dtype, (batch, heads // self.group.ranks, length * self.group.ranks))

    def _own(self, value: Value) -> Value:
        """The heads of one rank of sinks [H] or of a bias [.., H, 1, 1]."""
        d = 0 if len(value.shape) == 1 else len(value.shape) - 3
        if d < 0 or value.shape[d] == 1:
            return value
        shape = list(ints(value))
        shape[d] //= self.group.ranks
        return replace(value, shape=tuple(shape))


def check_heads(op: Op, ranks: int, seq: int, tp: int = 1) -> None:
    """Raise TorchperfError for an attention op whose heads `ranks` does not divide.

    seq   the whole sequence, which the nearest degrees divide too
    tp    ranks that have shared out the heads of the op before
    """
    heads, kv_heads = (max(1, ints(op.operand(name))[HEADS] // tp) for name in ("query", "key"))
    if _legal(heads, kv_heads, ranks):
        return
    legal = [d for d in range(1, heads + 1) if _legal(heads, kv_heads, d) and seq % d == 0]
    near = [*[d for d in legal if d < ranks][-1:], *[d for d in legal if d > ranks][:1]]
    raise TorchperfError(
        f"{ranks} ranks do not divide {heads} query heads over {kv_heads} KV heads",
        facts=[
            ("op", f"`{op.name}` in `{op.module}`, {op.phase}"),
            ("nearest", " or ".join(map(str, near))),
        ],
        hint=f"`--cp {near[0]}`, or `--cp-kind ring`",
    )


def _legal(heads: int, kv_heads: int, ranks: int) -> bool:
    """Whether each rank has whole groups of queries, or queries of one group only."""
    return heads % ranks == 0 and (kv_heads % ranks == 0 or ranks % kv_heads == 0)
