"""Ring attention on one rank: the kernels of its blocks, and the merging of what they give.

seconds = block + (n - 1) max over shapes of (block + merge)

block    attention.py, at the dims of the block; causal, the first is a triangle over the rank's own positions
shapes   of the later blocks of a causal ring: all queries on half of the keys, or half of the queries on all keys.
         In each step some rank has either, and all wait for the slower
merge    result so far and block's result in, result out, as one pointwise kernel
ignores  the messages (torchperf.send_recv has a price of its own), and what overlaps with them
source   Liu et al., Ring Attention, arXiv 2310.01889; online softmax of two results [dao2022]
"""

from __future__ import annotations

from dataclasses import replace

from ..graph.price import Price, Term
from ..graph.system import Accelerator
from ..graph.work import Work
from . import attention, memory_bound

STATISTIC = 4  # bytes of a logsumexp


def price(work: Work, accelerator: Accelerator, backward_pass: bool = False) -> Price:
    """Device time of one rank's blocks; `work` has the dims `ring` and `causal`."""
    q, kv, ranks, causal = (work.dim(name) for name in ("q", "kv", "ring", "causal"))
    first = _block(work, accelerator, q, kv, q * (q + 1) // 2 if causal else q * kv, backward_pass)
    shapes = ((q, kv // 2), (q // 2, kv)) if causal else ((q, kv),)
    later, merge = max(
        (
            (_block(work, accelerator, m, n, m * n, backward_pass), _merge(work, accelerator, m, n, backward_pass))
            for m, n in shapes
        ),
        key=lambda pair: pair[0].seconds + pair[1].seconds,
    )
    steps = ranks - 1
    terms = [
        *_terms(first, 1, "own block"), *_terms(later, steps, "later blocks"), *_terms(merge, steps, "merge"),
    ]  # fmt: skip
    seconds = first.seconds + steps * (later.seconds + merge.seconds)
    slowest = max(((first, 1), (later, steps), (merge, steps)), key=lambda part: part[0].seconds * part[1])[0]
    return Price(seconds, slowest.bound, tuple(terms))


def _block(work: Work, accelerator: Accelerator, q: int, kv: int, pairs: int, backward: bool) -> Price:
    sizes = {"q": q, "kv": kv, "pairs": pairs}
    block = replace(work, dims=tuple((name, sizes.get(name, size)) for name, size in work.dims))
    return attention.price(block, accelerator, backward_pass=backward, phase="prefill")


def _merge(work: Work, accelerator: Accelerator, q: int, kv: int, backward: bool) -> Price:
    """out and logsumexp in forward; dQ, dK and dV in backward."""
    element = attention.ELEMENT.get(work.dtype, 2)
    batch, heads, kv_heads, d, v = (work.dim(n) for n in ("batch", "heads", "kv_heads", "head_dim", "v_head_dim"))
    if backward:
        once = batch * element * (heads * q * d + kv_heads * kv * (d + v))
    else:
        once = batch * heads * q * (v * element + STATISTIC)
    numbers = once // element
    pointwise = Work("pointwise", "vector", work.dtype, numbers, numbers, numbers, 2 * once, once)
    return memory_bound.price(pointwise, accelerator)


def _terms(price: Price, times: int, name: str) -> list[Term]:
    return [
        replace(
            term, name=f"{name}: {term.name}", seconds=term.seconds * times,
            formula=term.formula if times == 1 else f"{times} ({term.formula})",
        )
        for term in price.terms
    ]  # fmt: skip
