"""The form in which attention runs: one flash kernel, or the kernels that it stands for.

    unfused forward     scores = Q K^T; + mask; probs = softmax(scores); drop(probs); out = probs V
    unfused backward    dV = probs^T dO; dP = dO V^T; dropout; softmax backward; dQ = dS K; dK = dS^T Q

Unfused, backward reads the probabilities (and with dropout their mask and what was left of them): 5 a s / h bytes
over s b h with dropout, as in [korthikanti2022]; flash keeps one fp32 number a query and head instead.
"""

from __future__ import annotations

from dataclasses import replace

from ..graph.dtype import nbytes
from ..graph.errors import TorchperfError
from ..graph.graph import Block, Graph, Segment
from ..graph.op import Op
from ..graph.tensor import Storage, Value
from .recognise import recognise

FORMS = ("auto", "flash", "unfused")


def form(asked: str, fused: bool) -> str:
    """The form to use: the user's; else flash under a runtime that fuses, and as the model was written under eager."""
    if asked not in FORMS:
        raise TorchperfError(
            f"unknown form of attention `{asked}`", facts=[("flag", "--attention")], hint=f"one of {', '.join(FORMS)}"
        )
    return ("flash" if fused else "written") if asked == "auto" else asked


def apply(graph: Graph, to: str) -> Graph:
    """The graph with every attention in the form `to`: `flash`, `unfused`, or as it was `written`."""
    if to == "flash":
        return recognise(graph)
    if to != "unfused" or not any(op.name.startswith("torchperf.attention") for op, _ in graph.ops()):
        return graph
    fresh = graph.num_storages
    blocks, added = [], []
    for block in graph.blocks:
        changed = _Unfused(block)
        blocks.append(changed.block())
        added.append(changed.added)
    segments = []
    for segment in graph.segments:
        extra = tuple(range(fresh, fresh + added[segment.block]))
        fresh += added[segment.block]
        segments.append(Segment(segment.block, segment.module, (*segment.storages, *extra)))
    return replace(graph, blocks=tuple(blocks), segments=tuple(segments))


class _Unfused:
    """One block with its attention ops expanded. New scratch storages come behind the block's own."""

    def __init__(self, source: Block) -> None:
        self.source = source
        self.storages: list[Storage] = list(source.storages)
        self.added = 0

    def block(self) -> Block:
        ops: list[Op] = []
        for op in self.source.ops:
            if op.name == "torchperf.attention.default":
                ops += self._forward(op)
            elif op.name == "torchperf.attention_backward.default":
                ops += self._backward(op)
            else:
                ops.append(op)
        return Block(self.source.module, self.source.phase, tuple(self.storages), tuple(ops))

    def _scratch(self, shape: tuple[int, ...], dtype: str) -> Value:
        numel = 1
        for d in shape:
            numel *= d
        self.storages.append(Storage(nbytes(numel, dtype), "activation"))
        self.added += 1
        return _dense(len(self.storages) - 1, dtype, shape)

    def _kept(self, op: Op, slot: int) -> tuple[Value, Value | None, Value]:
        """(probabilities, dropout mask, what dropout left): all in the storage that held logsumexp."""
        query, key = op.operand("query"), op.operand("key")
        shape = (*_ints(query)[:3], _ints(key)[2])
        dtype = query.dtype
        numel = shape[0] * shape[1] * shape[2] * shape[3]
        width = nbytes(1, dtype)
        probs = _dense(slot, dtype, shape)
        if not op.attr("dropout_p", 0.0):
            self.storages[slot] = replace(self.storages[slot], nbytes=width * numel)
            return probs, None, probs
        self.storages[slot] = replace(self.storages[slot], nbytes=(2 * width + 1) * numel)
        mask = replace(_dense(slot, "bool", shape), offset=2 * width * numel)
        return probs, mask, replace(probs, offset=numel)

    def _forward(self, op: Op) -> list[Op]:
        query, key, value = (op.operand(n) for n in ("query", "key", "value"))
        bias, out, logsumexp = op.find("bias"), op.outputs[0], op.outputs[1]
        probs, mask, left = self._kept(op, logsumexp.slot)
        scores = self._scratch(_ints(probs), query.dtype)
        ops = [_op(op, "aten.bmm.default", self._bmm(query, key, True), (_three(scores),))]
        if bias is not None:
            ops.append(_op(op, "aten.add_.Tensor", (("self", scores), ("other", bias)), (scores,)))
        elif op.attr("is_causal") or op.attr("window") or op.attr("chunk"):
            ops.append(_op(op, "aten.masked_fill_.Scalar", (("self", scores),), (scores,)))
        ops.append(_op(op, "aten._softmax.default", (("self", scores),), (probs,), (("dim", -1),)))
        if mask is not None:
            ops.append(_op(op, "aten.native_dropout.default", (("input", probs),), (left, mask)))
        ops.append(_op(op, "aten.bmm.default", self._bmm(left, value, False), (_three(out),)))
        return ops

    def _backward(self, op: Op) -> list[Op]:
        grad, query, key, value = (op.operand(n) for n in ("grad_out", "query", "key", "value"))
        probs, mask, left = self._kept(op, op.operand("logsumexp").slot)
        dq, dk, dv = op.outputs[:3]
        d_probs = self._scratch(_ints(probs), query.dtype)
        ops = [
            _op(op, "aten.bmm.default", self._bmm(_swap(left), grad, False), (_three(self._wide(dv, probs)),)),
            _op(op, "aten.bmm.default", self._bmm(grad, value, True), (_three(d_probs),)),
        ]
        if mask is not None:
            ops.append(
                _op(op, "aten.native_dropout_backward.default", (("grad_output", d_probs), ("mask", mask)), (d_probs,))
            )
        d_scores = self._scratch(_ints(probs), query.dtype)
        given = (("grad_output", d_probs), ("output", probs))
        ops += [
            _op(op, "aten._softmax_backward_data.default", given, (d_scores,), (("dim", -1),)),
            _op(op, "aten.bmm.default", self._bmm(d_scores, key, False), (_three(dq),)),
            _op(op, "aten.bmm.default", self._bmm(_swap(d_scores), query, False), (_three(self._wide(dk, probs)),)),
        ]
        if len(op.outputs) > 3 and op.find("bias") is not None and op.outputs[3].numel:
            ops.append(_op(op, "aten.sum.dim_IntList", (("self", d_scores),), (op.outputs[3],), (("dim", (0,)),)))
        return ops

    def _wide(self, grad: Value, probs: Value) -> Value:
        """A gradient of keys or values at the queries' number of heads; under GQA the groups are summed after."""
        return replace(grad, shape=(grad.shape[0], probs.shape[1], *grad.shape[2:]))

    def _bmm(self, a: Value, b: Value, transpose: bool) -> tuple[tuple[str, Value], ...]:
        heads = a.shape[1]
        b = replace(b, shape=(b.shape[0], heads, *b.shape[2:]), strides=_broadcast(b, heads))
        return ("self", _three(a)), ("mat2", _three(_swap(b) if transpose else b))


def _broadcast(value: Value, heads: object) -> tuple[int, ...]:
    strides: tuple[int, ...] = tuple(int(s) for s in value.strides)  # type: ignore[arg-type]
    return strides if value.shape[1] == heads else (strides[0], 0, *strides[2:])


def _op(
    op: Op, name: str, inputs: tuple[tuple[str, Value], ...], outputs: tuple[Value, ...],
    attrs: tuple[tuple[str, object], ...] = (),
) -> Op:  # fmt: skip
    names, values = zip(*inputs, strict=True)
    return Op(name, op.phase, op.module, names, values, outputs, attrs)


def _ints(value: Value) -> tuple[int, ...]:
    return tuple(int(d) for d in value.shape)  # type: ignore[arg-type]


def _dense(slot: int, dtype: str, shape: tuple[int, ...]) -> Value:
    strides, step = [], 1
    for d in reversed(shape):
        strides.append(step)
        step *= d
    return Value(slot, dtype, shape, tuple(reversed(strides)))


def _swap(value: Value) -> Value:
    shape, strides = value.shape, value.strides
    return replace(value, shape=(*shape[:2], shape[3], shape[2]), strides=(*strides[:2], strides[3], strides[2]))


def _three(value: Value) -> Value:
    """[B, H, M, N] as [B H, M, N]; a broadcast head (stride 0) stays one that is read once."""
    b, h, m, n = _ints(value)
    head = value.strides[1]
    return Value(value.slot, value.dtype, (b * h, m, n), (head, *value.strides[2:]), value.offset)
