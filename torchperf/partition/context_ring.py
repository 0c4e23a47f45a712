"""Ring attention: keys and values pass from rank to rank, each rank's queries meet them block by block.

Causal, rank r of n holds chunks r and 2n-1-r of 2n (zigzag), so that every rank has the same work: one causal block
over its own S/n positions, then n-1 blocks of half as many pairs that no mask cuts: half of the keys for all queries
where they come from a lower rank, all of them for the later half of the queries from a higher one. Without a mask
each of the n blocks is whole.

forward    n-1 messages of K and V
backward   n messages: K and V in all but the last, dK and dV in all but the first; 2 (n-1) times K and V in all
memory     two buffers for what travels, and one block's result before it is merged
ignores    that TransformerEngine keeps every message of forward until the call ends
source     Liu et al., Ring Attention, arXiv 2310.01889; chunks and messages as in TransformerEngine, which
           Megatron-Core calls: pytorch/attention/dot_product_attention/context_parallel.py, AttnFuncWithCPAndKVP2P.
           It too refuses a window in a ring
"""

from __future__ import annotations

from dataclasses import replace

from ..graph.dtype import nbytes
from ..graph.errors import TorchperfError
from ..graph.op import Op
from ..graph.tensor import Value
from .context_storages import LENGTH, Group, Scratch, beside, ints


def ring(op: Op, group: Group, scratch: Scratch) -> list[Op]:
    """The op as `ranks` blocks (attr `ring`), behind the messages that bring their keys; raises TorchperfError."""
    _check(op, group.ranks)
    backward = op.name.startswith("torchperf.attention_backward")
    key, value = op.operand("key"), op.operand("value")
    once = key.nbytes + value.nbytes
    steps = group.ranks if backward else group.ranks - 1
    sent = (2 if backward else 1) * (group.ranks - 1) * once
    received = _bytes(scratch, key.dtype, (4 if backward else 2) * once)
    results = op.outputs[:3] if backward else op.outputs[:2]
    partial = _bytes(scratch, key.dtype, sum(result.nbytes for result in results))
    attrs = (*group.attrs("ring"), ("steps", steps), ("nbytes", -(-sent // steps)))
    whole = ints(key)[LENGTH] * group.ranks
    kept = tuple((name, a) for name, a in op.attrs if name not in ("window", "chunk") or a < whole)
    blocks = replace(
        op, operands=(*op.operands, "received"), inputs=(*op.inputs, received), outputs=(*op.outputs, partial),
        attrs=(*kept, ("ring", group.ranks)),
    )  # fmt: skip
    return [beside(op, "torchperf.send_recv", (("key", key), ("value", value)), received, attrs), blocks]


def _bytes(scratch: Scratch, dtype: str, size: int) -> Value:
    """A buffer of `size` bytes."""
    return scratch.new(dtype, (-(-size // nbytes(1, dtype)),))


def _check(op: Op, ranks: int) -> None:
    queries, keys = ints(op.operand("query"))[LENGTH], ints(op.operand("key"))[LENGTH]
    for name in ("window", "chunk"):
        size = op.attr(name)
        if size is not None and size < keys * ranks:
            raise _error(op, f"ring attention knows no {name}", f"{size} of {keys * ranks} keys")
    if op.find("sinks") is not None:
        raise _error(op, "ring attention knows no sinks", "a logit that no key has")
    if op.attr("is_causal") and queries != keys:
        raise _error(op, "causal ring attention needs as many queries as keys", f"{queries} and {keys} a rank")
    if op.attr("is_causal") and queries % 2:
        raise _error(op, "a rank's positions are no two equal chunks", f"{queries} of them")


def _error(op: Op, message: str, fact: str) -> TorchperfError:
    return TorchperfError(
        message, facts=[("op", f"`{op.name}` in `{op.module}`, {op.phase}"), ("has", fact)], hint="`--cp-kind ulysses`"
    )
