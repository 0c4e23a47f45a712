"""The form of written-out attention in one block: which ops make it up, and the attention op that stands for them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..graph.graph import Block
from ..graph.op import Op
from ..graph.tensor import Value

_SOFTMAX = ("aten._softmax.default", "aten._safe_softmax.default")
_PRODUCT = ("aten.bmm.default", "aten.baddbmm.default")
_ELEMENTWISE = (
    "aten.add", "aten.sub", "aten.mul", "aten.div", "aten.masked_fill", "aten.where", "aten._to_copy", "aten.clone",
    "aten.native_dropout", "aten.tanh", "aten.tanh_backward", "aten.full_like", "aten.zeros_like", "aten.copy_",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Match:
    """Ops of one block (by index) that one attention op replaces; `probs` is softmax's output slot."""

    removed: frozenset[int]
    at: int
    probs: int
    op: Op


def internal(block: Block, match: Match) -> set[int]:
    """Slots that the removed ops write and that the new op does not."""
    kept = {v.slot for v in (*match.op.outputs, *match.op.inputs)} - {match.probs}
    return {v.slot for i in match.removed for v in block.ops[i].outputs} - kept - {match.probs}


def only_removed(block: Block, slot: int, match: Match) -> bool:
    users = [i for i, op in enumerate(block.ops) if any(v.slot == slot for v in (*op.inputs, *op.outputs))]
    return all(i in match.removed or is_view(block.ops[i]) for i in users)


def is_view(op: Op) -> bool:
    packet = op.name.split(".")[1]
    slots = {v.slot for v in op.inputs}
    return bool(op.outputs) and not packet.endswith("_") and all(v.slot in slots for v in op.outputs)


class _Uses:
    """Writers and readers of each slot of a block, views left out."""

    def __init__(self, block: Block) -> None:
        self.ops = block.ops
        self.writers: dict[int, list[int]] = {}
        self.readers: dict[int, list[int]] = {}
        for i, op in enumerate(block.ops):
            if is_view(op):
                continue
            for value in op.inputs:
                self.readers.setdefault(value.slot, []).append(i)
            for value in op.outputs:
                self.writers.setdefault(value.slot, []).append(i)

    def up(self, value: Value, before: int, seen: set[int]) -> tuple[int, list[Value]] | None:
        """From `value` back through elementwise ops to the product that made it: (op, other tensors read)."""
        extra: list[Value] = []
        while True:
            made = [i for i in self.writers.get(value.slot, ()) if i < before]
            if not made:
                return None
            i = made[-1]
            op = self.ops[i]
            if op.name in _PRODUCT:
                return i, extra
            if not op.name.startswith(_ELEMENTWISE):
                return None
            seen.add(i)
            same = [v for v in op.inputs if v.numel == op.outputs[0].numel and self._from_product(v, i)]
            if len(same) != 1:
                return None
            extra += [v for v in op.inputs if v is not same[0] and v.numel > 1]
            value, before = same[0], i

    def _from_product(self, value: Value, before: int) -> bool:
        made = [i for i in self.writers.get(value.slot, ()) if i < before]
        if not made:
            return False
        op = self.ops[made[-1]]
        if op.name in _PRODUCT or op.name.startswith("aten._softmax_backward"):
            return True
        return op.name.startswith(_ELEMENTWISE) and any(
            v.numel == op.outputs[0].numel and self._from_product(v, made[-1]) for v in op.inputs
        )

    def down(self, value: Value, after: int, seen: set[int]) -> list[int] | None:
        """From `value` on through elementwise ops to the products that read it; None where anything else reads it."""
        ends: list[int] = []
        stack = [(value.slot, after)]
        while stack:
            slot, start = stack.pop()
            for i in [i for i in self.readers.get(slot, ()) if i > start]:
                op = self.ops[i]
                if op.name in _PRODUCT:
                    ends.append(i)
                elif op.name.startswith(_ELEMENTWISE) and op.outputs[0].numel == value.numel:
                    if i not in seen:
                        seen.add(i)
                        stack += [(v.slot, i) for v in op.outputs if v.numel == value.numel]
                else:
                    return None
        return sorted(set(ends))


def forward_matches(block: Block) -> dict[int, Match]:
    uses, found = _Uses(block), dict[int, Match]()
    for i, op in enumerate(block.ops):
        if op.name not in _SOFTMAX or len(op.outputs[0].shape) < 3:
            continue
        seen: set[int] = set()
        above = uses.up(op.inputs[0], i, seen)
        below = uses.down(op.outputs[0], i, seen)
        if above is None or below is None or len(below) != 1:
            continue
        first, second = block.ops[above[0]], block.ops[below[0]]
        q, k = _factors(first)
        p, v = _factors(second)
        if p.numel != op.outputs[0].numel:
            continue
        lead = _lead(op.outputs[0])
        dropped = [o for o in (block.ops[j] for j in seen) if o.name.startswith("aten.native_dropout")]
        attrs = (("dropout_p", dropped[0].attr("p", 0.1)),) if dropped else ()
        bias = [x for x in above[1] if x.dtype != "bool" or x.numel > 1]
        operands, inputs = ["query", "key", "value"], [_four(q, lead), _four(_transposed(k), lead), _four(v, lead)]
        if bias:
            operands.append("bias")
            inputs.append(bias[0])
        removed = frozenset({i, above[0], below[0], *seen})
        scores = op.outputs[0]
        sums = Value(scores.slot, "fp32", tuple(inputs[0].shape[:3]), _dense(inputs[0].shape[:3]))
        new = Op(
            "torchperf.attention.default", op.phase, op.module, tuple(operands), tuple(inputs),
            (_four(second.outputs[0], lead), sums), attrs,
        )  # fmt: skip
        found[scores.slot] = Match(removed, below[0], scores.slot, new)
    return found


def backward_matches(block: Block) -> dict[int, Match]:
    uses, found = _Uses(block), dict[int, Match]()
    for i, op in enumerate(block.ops):
        if not op.name.startswith("aten._softmax_backward"):
            continue
        seen: set[int] = set()
        probs = op.operand("output")
        above = uses.up(op.operand("grad_output"), i, seen)
        below = uses.down(op.outputs[0], i, seen)
        if above is None or below is None or len(below) != 2:
            continue
        grad, v = _factors(block.ops[above[0]])
        products = [j for j in uses.readers.get(grad.slot, ()) if j != above[0] and block.ops[j].name in _PRODUCT]
        value_grad = [j for j in products if _factors(block.ops[j])[1].slot == grad.slot]
        if len(value_grad) != 1:
            continue
        to_q = [j for j in below if _factors(block.ops[j])[0].numel == probs.numel]
        to_k = [j for j in below if _factors(block.ops[j])[1].numel == probs.numel and j not in to_q]
        if len(to_q) == 2:  # ds may be the first factor of both, once transposed
            to_k = [j for j in to_q if _factors(block.ops[j])[0].strides[-1] != 1]
            to_q = [j for j in to_q if j not in to_k]
        if len(to_q) != 1 or len(to_k) != 1:
            continue
        lead = _lead(probs)
        k = _factors(block.ops[to_q[0]])[1]
        other = _factors(block.ops[to_k[0]])
        q = other[1] if other[0].numel == probs.numel else _transposed(other[0])
        dk = block.ops[to_k[0]].outputs[0]
        dk = dk if other[0].numel == probs.numel else _transposed(dk)
        inputs = (_four(grad, lead), _four(q, lead), _four(k, lead), _four(_transposed(v), lead))
        sums = Value(probs.slot, "fp32", tuple(inputs[1].shape[:3]), _dense(inputs[1].shape[:3]))
        outputs = (
            _four(block.ops[to_q[0]].outputs[0], lead), _four(dk, lead),
            _four(block.ops[value_grad[0]].outputs[0], lead),
        )  # fmt: skip
        new = Op(
            "torchperf.attention_backward.default", op.phase, op.module,
            ("grad_out", "query", "key", "value", "logsumexp"), (*inputs, sums), outputs,
        )  # fmt: skip
        removed = frozenset({i, above[0], *below, value_grad[0], *seen})
        found[probs.slot] = Match(removed, max(removed), probs.slot, new)
    return found


def _factors(op: Op) -> tuple[Value, Value]:
    if op.name == "aten.bmm.default":
        return op.operand("self"), op.operand("mat2")
    return op.operand("batch1"), op.operand("batch2")


def _lead(scores: Value) -> tuple[int, int]:
    """Batch and heads of the scores."""
    shape = [int(d) for d in scores.shape]  # type: ignore[arg-type]
    return (shape[0], shape[1]) if len(shape) == 4 else (1, shape[0])


def _transposed(value: Value) -> Value:
    shape, strides = value.shape, value.strides
    return replace(value, shape=(*shape[:-2], shape[-1], shape[-2]), strides=(*strides[:-2], strides[-1], strides[-2]))


def _four(value: Value, lead: tuple[int, int]) -> Value:
    step = value.strides[0]
    strides = (step * lead[1], step, *value.strides[1:])  # type: ignore[operator]
    return replace(value, shape=(*lead, *value.shape[1:]), strides=strides)


def _dense(shape: tuple[object, ...]) -> tuple[int, ...]:
    _, h, s = (int(d) for d in shape)  # type: ignore[call-overload]
    return (h * s, s, 1)
