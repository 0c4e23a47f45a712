"""Fused attention: softmax(Q K^T) V as one op, forward and backward.

flops counts the (query, key) pairs that the mask leaves, flops_noncausal ignores the causal triangle but
keeps the window, flops_executed is what a flash kernel runs. Queries are aligned with the last keys (bottom
right), so query i stands at position p = i + Skv - Sq. Softmax itself is not counted.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from torchperf.graph.dtype import bits
from torchperf.graph.op import Op
from torchperf.graph.tensor import Value
from torchperf.graph.work import Work

from .registry import aten, rule
from .traffic import read, read_except, shape, written

FORWARD = """
    _scaled_dot_product_flash_attention _scaled_dot_product_efficient_attention
    _scaled_dot_product_cudnn_attention _scaled_dot_product_flash_attention_for_cpu
    _scaled_dot_product_fused_attention_overrideable _scaled_dot_product_attention_math
    _scaled_dot_product_attention_math_for_mps scaled_dot_product_attention"""
BACKWARD = """
    _scaled_dot_product_flash_attention_backward _scaled_dot_product_efficient_attention_backward
    _scaled_dot_product_cudnn_attention_backward
    _scaled_dot_product_flash_attention_for_cpu_backward
    _scaled_dot_product_fused_attention_overrideable_backward"""


def triangle(n: int) -> int:
    """1 + 2 + ... + n, and 0 below 1."""
    return n * (n + 1) // 2 if n > 0 else 0


def ramp(n: int, cap: int) -> int:
    """Sum of min(c, cap) for c = 1..n, and 0 below 1."""
    return triangle(n) if n <= cap else triangle(cap) + (n - cap) * cap


def visible_pairs(
    queries: int, keys: int, causal: bool = False, window: int | None = None, chunk: int | None = None
) -> int:
    """Number of (query, key) pairs that the mask leaves; query i stands at p = i + keys - queries.

    Closed forms, O(1):

    causal          j <= p                         sum over p of p + 1
    causal, window  p - w < j <= p                 sum over p of min(p + 1, w)
    window          |p - j| < w                    sum over p of min(p + w, keys) - max(p - w + 1, 0)
    chunk           floor(j / c) = floor(p / c) as well: the sum over chunks, each a small case of the above
    """
    skipped = keys - queries  # keys before the first query; negative where queries come before the first key
    if chunk is not None and keys > 0:
        first = max(skipped, 0)
        head, tail = first // chunk, (keys - 1) // chunk
        rest = keys - tail * chunk
        if head == tail:
            return visible_pairs(keys - first, rest, causal, window)
        inner = (tail - head - 1) * visible_pairs(chunk, chunk, causal, window)
        start = visible_pairs((head + 1) * chunk - first, chunk, causal, window)
        return start + inner + visible_pairs(rest, rest, causal, window)
    if causal:
        cap = keys if window is None else window
        return ramp(keys, cap) - ramp(skipped, cap)
    if window is None:
        return queries * keys
    upper = ramp(keys - 1 + window, keys) - ramp(skipped + window - 1, keys)
    return upper - triangle(keys - window) + triangle(skipped - window)


def keys_per_query(keys: int, causal: bool, window: int | None, chunk: int | None) -> int:
    """Keys that a query is charged for without the triangle: the window's (both sides, where not causal)."""
    if window is not None:
        keys = min(keys, window if causal else 2 * window - 1)
    return keys if chunk is None else min(keys, chunk)


def keys_touched(queries: int, keys: int, window: int | None, chunk: int | None) -> int:
    """Keys that at least one query can see; those before the window of the first query are not read."""
    first = max(keys - queries, 0)
    start = 0 if window is None else max(first - window + 1, 0)
    if chunk is not None:
        start = max(start, first // chunk * chunk)
    return keys - start


@dataclass(frozen=True, slots=True)
class Mask:
    """Which keys a query sees: all, or those up to its own position, within a window, within its chunk."""

    causal: bool
    window: int | None = None
    chunk: int | None = None


@dataclass(frozen=True, slots=True)
class Sizes:
    """batch, query and key heads, lengths of query and key, head dims of query and value."""

    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    head_dim: int
    v_head_dim: int


def attention_work(op: Op, sizes: Sizes, mask: Mask, backward: bool) -> Work:
    """flops = 2 B H pairs (D + Dv) forward, twice that backward; flash's backward runs Q K^T again.

    read and write are the tensors named by the op; K and V only as far as any query sees them, and V not again where
    it is a part of K (a latent). Further dims where they say something: `kv_width`, elements of a key and value that
    are one; `kv_bits` of an element of K, where q has another type.
    """
    q, k = sizes.queries, sizes.keys
    pairs = visible_pairs(q, k, mask.causal, mask.window, mask.chunk)
    charged = q * keys_per_query(k, mask.causal, mask.window, mask.chunk)
    both = sizes.head_dim + sizes.v_head_dim
    products = 2 * sizes.batch * sizes.heads * (2 * both if backward else both)
    repeated = 2 * sizes.batch * sizes.heads * sizes.head_dim if backward else 0
    bytes_read = read(op)
    key, value = op.operand("key"), op.operand("value")
    shared = value.nbytes if _inside(value, key) else 0
    bytes_read -= shared
    unseen = k - keys_touched(q, k, mask.window, mask.chunk)
    if unseen:
        bytes_read -= (key.nbytes + value.nbytes - shared) * unseen // k
    dims: tuple[tuple[str, int], ...] = (
        ("batch", sizes.batch), ("heads", sizes.heads), ("kv_heads", sizes.kv_heads), ("q", q), ("kv", k),
        ("head_dim", sizes.head_dim), ("v_head_dim", sizes.v_head_dim), ("pairs", pairs),
    )  # fmt: skip
    if shared:
        dims += (("kv_width", sizes.head_dim),)
    if key.dtype != op.operand("query").dtype:
        dims += (("kv_bits", bits(key.dtype)),)
    return Work(
        "attention", "matrix", op.operand("query").dtype, products * pairs, products * charged,
        (products + repeated) * pairs, bytes_read, written(op), dims,
    )  # fmt: skip


def ring_pairs(queries: int, keys: int, ranks: int, causal: bool) -> int:
    """Pairs of one rank of a ring, each rank the same; `queries` and `keys` are those that it holds.

    causal, zigzag   c (c + 1) / 2 of its own block and c^2 / 2 of each other: S (S + 1) / (2 n) with c = S / n
    else             n c^2
    """
    if not causal:
        return ranks * queries * keys
    return triangle(queries) + (ranks - 1) * (queries * keys // 2)


def ring_work(op: Op, sizes: Sizes, backward: bool) -> Work:
    """Attention in `ring` blocks, each by a kernel, and its result merged into those before it.

    flops   as `attention_work`, of all blocks
    read    what the op reads; for each later block again, and the result so far beside the block's own
    write   what the op writes; for each later block its own result, and the merged one
            of a causal ring's later blocks 3/4: all queries meet half the keys, or half the queries all keys
    """
    ranks, causal = int(op.attr("ring")), bool(op.attr("is_causal", False))
    whole = attention_work(op, sizes, Mask(False), backward)
    pairs = ring_pairs(sizes.queries, sizes.keys, ranks, causal)
    own = sizes.queries * sizes.keys
    results = sum(value.nbytes for value in op.outputs[: 3 if backward else 2])
    given = read_except(op, "received")
    share = 3 if causal else 4  # quarters
    dims = tuple((name, pairs if name == "pairs" else size) for name, size in whole.dims)
    return replace(
        whole, flops=whole.flops * pairs // own, flops_noncausal=whole.flops * ranks,
        flops_executed=whole.flops_executed * pairs // own,
        bytes_read=given + (ranks - 1) * share * (given + 2 * results) // 4,
        bytes_written=results + (ranks - 1) * share * 2 * results // 4,
        dims=(*dims, ("ring", ranks), ("causal", int(causal))),
    )  # fmt: skip


def _inside(value: Value, key: Value) -> bool:
    """Whether every row of V lies within the row of K."""
    if value.slot != key.slot or value.strides != key.strides or value.shape[:-1] != key.shape[:-1]:
        return False
    first, last = value.offset - key.offset, value.offset - key.offset + value.shape[-1]  # type: ignore[operator]
    return bool(first >= 0 and last <= key.shape[-1])  # type: ignore[operator]


def heads_first(op: Op) -> Sizes:
    """Sizes of query[..,Hq,Sq,D], key[..,Hkv,Skv,D], value[..,Hkv,Skv,Dv]."""
    query, key, value = (shape(op.operand(name)) for name in ("query", "key", "value"))
    heads, kv_heads = (query[-3], key[-3]) if len(query) > 2 else (1, 1)
    return Sizes(prod(query[:-3]), heads, kv_heads, query[-2], key[-2], query[-1], value[-1])


def sequence_first(op: Op, lengths: Value | None) -> Sizes:
    """Sizes of query[B,Sq,H,D], or of packed query[total,H,D] with `lengths` [B+1], taken as equally long."""
    query, key, value = (shape(op.operand(name)) for name in ("query", "key", "value"))
    batch = shape(lengths)[0] - 1 if lengths is not None else prod(query[:-3])
    tokens, kv_tokens = prod(query[:-2]), prod(key[:-2])
    return Sizes(batch, query[-2], key[-2], tokens // batch, kv_tokens // batch, query[-1], value[-1])


def own_mask(op: Op) -> Mask:
    """Mask of ops with `is_causal`, and with `window` and `chunk` where they are ours."""
    return Mask(bool(op.attr("is_causal", False)), op.attr("window"), op.attr("chunk"))


@rule("torchperf.attention", *aten(FORWARD))
def attention(op: Op) -> Work:
    """softmax(q[B,Hq,Sq,D] k[B,Hkv,Skv,D]^T + bias) v[B,Hkv,Skv,Dv] -> out[B,Hq,Sq,Dv], logsumexp

    flops    2 B Hq pairs (D + Dv), pairs = what causal, window and chunk leave; a dense mask leaves all
    read     q, k, v, bias; key heads are not repeated (GQA)     write  out, logsumexp
    ignores  softmax, dropout, keys that no tile boundary spares
    error    exact; equal to torch.utils.flop_counter where not causal
    """
    if op.attr("ring"):
        return ring_work(op, heads_first(op), False)
    return attention_work(op, heads_first(op), own_mask(op), False)


@rule("torchperf.attention_backward", *aten(BACKWARD))
def attention_backward(op: Op) -> Work:
    """dOut, q, k, v, out, logsumexp -> dQ, dK, dV (and the bias's and sinks' gradients)

    flops           4 B Hq pairs (D + Dv): dV and dP over Dv, dQ and dK over D
    flops_executed  2 B Hq pairs (3 D + 2 Dv): Q K^T again, 2.5 x the forward where D = Dv
    source          FlashAttention, arXiv 2205.14135, algorithm 4
    """
    if op.attr("ring"):
        return ring_work(op, heads_first(op), True)
    return attention_work(op, heads_first(op), own_mask(op), True)


@rule("aten._cudnn_attention_forward")
def cudnn_attention(op: Op) -> Work:
    """As `attention`; packed [total,H,D] where `cum_seq_q` is given."""
    lengths = op.find("cum_seq_q") if len(op.operand("query").shape) == 3 else None
    sizes = sequence_first(op, lengths) if lengths else heads_first(op)
    return attention_work(op, sizes, own_mask(op), False)


@rule("aten._cudnn_attention_backward")
def cudnn_attention_backward(op: Op) -> Work:
    """As `attention_backward`; packed [total,H,D] where `cum_seq_q` is given."""
    lengths = op.find("cum_seq_q") if len(op.operand("query").shape) == 3 else None
    sizes = sequence_first(op, lengths) if lengths else heads_first(op)
    return attention_work(op, sizes, own_mask(op), True)


def _flash(op: Op, backward: bool) -> Work:
    left = op.attr("window_size_left")
    window = left + 1 if isinstance(left, int) and left >= 0 else None
    lengths = op.find("cum_seq_q") if len(op.operand("query").shape) == 3 else None
    causal = bool(op.attr("is_causal", False)) or op.attr("window_size_right") == 0
    return attention_work(op, sequence_first(op, lengths), Mask(causal, window), backward)


@rule("aten._flash_attention_forward", "aten._flash_attention_forward_no_dropout_inplace")
def flash_forward(op: Op) -> Work:
    """As `attention`, on [B,S,H,D] or packed [total,H,D]

    window   window_size_left + 1, where that is not -1; causal too where window_size_right is 0
    ignores  a right window that differs from the left; packed sequences are taken as equally long
    """
    return _flash(op, False)


@rule("aten._flash_attention_backward")
def flash_backward(op: Op) -> Work:
    """As `attention_backward`, on the layouts of `flash_forward`."""
    return _flash(op, True)


def _efficient(op: Op, lengths: str, backward: bool) -> Work:
    window = op.attr("window_size")
    mask = Mask(op.attr("custom_mask_type", 0) != 0, window if window else None)
    return attention_work(op, sequence_first(op, op.find(lengths)), mask, backward)


@rule("aten._efficient_attention_forward")
def efficient_forward(op: Op) -> Work:
    """As `attention`, on [B,S,H,D]; custom_mask_type 1 and 2 are causal, both aligned bottom right here."""
    return _efficient(op, "cu_seqlens_q", False)


@rule("aten._efficient_attention_backward")
def efficient_backward(op: Op) -> Work:
    """As `attention_backward`, on the layout of `efficient_forward`."""
    return _efficient(op, "cu_seqlens_q", True)
