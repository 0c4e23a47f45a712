"""Contractions on the matrix engine. Everywhere flops = 2 batch m n k; adding a bias is not counted.

Dims of every op here: batch, m, n, k, and `groups` where each group of rows meets its own matrix. read = each
distinct operand, write = the result, both lower bounds: no split-k partial sums, no second pass over a tile.
Exact against a hand count; the bytes are those of the roofline model (Williams et al. 2009).
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from torchperf.graph.op import Op
from torchperf.graph.work import Work

from .registry import aten, rule
from .traffic import listed, read, shape, vector, written

PACKED = """
    _weight_int8pack_mm _weight_int4pack_mm _weight_int4pack_mm_for_cpu
    _weight_int4pack_mm_with_scales_and_zeros"""


def contraction(op: Op, dtype: str, batch: int, m: int, n: int, k: int, equation: str) -> Work:
    """flops = 2 batch m n k, read and written in full."""
    flops = 2 * batch * m * n * k
    dims = (("batch", batch), ("m", m), ("n", n), ("k", k))
    return Work("matmul", "matrix", dtype, flops, flops, flops, read(op), written(op), dims, equation)


@rule("aten.mm", "aten._scaled_mm", "aten._scaled_mm_v2", "aten._int_mm", "aten.hspmm")
def mm(op: Op) -> Work:
    """x[m,k] . w[k,n] -> y[m,n]

    flops    2 m n k                   read (m k + k n) b    write m n b      b = bytes per element
    ignores  split-k partial sums; the scales of a scaled product are read, not counted as FLOPs
    """
    x, w = op.operand("self"), op.operand("mat2")
    m, k = shape(x)
    return contraction(op, x.dtype, 1, m, shape(w)[1], k, "mk,kn->mn")


@rule("aten.addmm", "aten._addmm_activation")
def addmm(op: Op) -> Work:
    """c + x[m,k] . w[k,n] -> y[m,n]

    flops    2 m n k                   read (|c| + m k + k n) b    write m n b
    """
    x, w = op.operand("mat1"), op.operand("mat2")
    m, k = shape(x)
    return contraction(op, x.dtype, 1, m, shape(w)[1], k, "mk,kn->mn")


@rule("aten.bmm")
def bmm(op: Op) -> Work:
    """x[b,m,k] . w[b,k,n] -> y[b,m,n]

    flops    2 b m n k
    """
    x, w = op.operand("self"), op.operand("mat2")
    b, m, k = shape(x)
    return contraction(op, x.dtype, b, m, shape(w)[2], k, "bmk,bkn->bmn")


@rule("aten.baddbmm")
def baddbmm(op: Op) -> Work:
    """c + x[b,m,k] . w[b,k,n] -> y[b,m,n]

    flops    2 b m n k
    """
    x, w = op.operand("batch1"), op.operand("batch2")
    b, m, k = shape(x)
    return contraction(op, x.dtype, b, m, shape(w)[2], k, "bmk,bkn->bmn")


@rule("aten.addbmm")
def addbmm(op: Op) -> Work:
    """c + sum over b of x[b,m,k] . w[b,k,n] -> y[m,n]

    flops    2 b m n k
    """
    x, w = op.operand("batch1"), op.operand("batch2")
    b, m, k = shape(x)
    return contraction(op, x.dtype, b, m, shape(w)[2], k, "bmk,bkn->mn")


@rule("aten.linear")
def linear(op: Op) -> Work:
    """x[..,k] . w[n,k] + bias -> y[..,n], with m the product of the leading dims

    flops    2 m n k
    """
    x = op.operand("input")
    *lead, k = shape(x)
    w = shape(op.operand("weight"))
    return contraction(op, x.dtype, 1, prod(lead), w[0] if len(w) == 2 else 1, k, "mk,nk->mn")


@rule("aten.linear_backward")
def linear_backward(op: Op) -> Work:
    """dy[m,n], x[m,k], w[n,k] -> dx[m,k], dw[n,k], db[n], each where output_mask asks for it

    flops    2 m n k for dx, 2 m n k for dw; db is a sum and not counted
    read     dy, w where dx is asked for, x where dw is
    """
    x, w = op.operand("self"), op.operand("weight")
    n, k = shape(w)
    wants_x, wants_w, _ = op.attr("output_mask", (True, True, True))
    m = x.numel // k if k else 0
    work = contraction(op, x.dtype, int(wants_x) + int(wants_w), m, n, k, "mn,nk->mk")
    unread = (0 if wants_x else w.nbytes) + (0 if wants_w else x.nbytes)
    return replace(work, bytes_read=work.bytes_read - unread) if unread else work


@rule("aten.matmul")
def matmul(op: Op) -> Work:
    """x[..,m,k] . w[..,k,n] with broadcast leading dims; a vector operand has m or n = 1

    flops    2 batch m n k; the batch of x is folded into m where w has none
    """
    x, w = op.operand("self"), op.operand("other")
    a, b = shape(x), shape(w)
    n = b[-1] if len(b) > 1 else 1
    if len(b) <= 2:
        return contraction(op, x.dtype, 1, prod(a[:-1]), n, a[-1], "mk,kn->mn")
    m = a[-2] if len(a) > 1 else 1
    batch = op.outputs[0].numel // (m * n) if m * n else 0
    return contraction(op, x.dtype, batch, m, n, a[-1], "bmk,bkn->bmn")


@rule("aten.mv")
def mv(op: Op) -> Work:
    """x[m,k] . v[k] -> y[m]

    flops    2 m k
    """
    x = op.operand("self")
    m, k = shape(x)
    return contraction(op, x.dtype, 1, m, 1, k, "mk,k->m")


@rule("aten.addmv")
def addmv(op: Op) -> Work:
    """c + x[m,k] . v[k] -> y[m]

    flops    2 m k
    """
    x = op.operand("mat")
    m, k = shape(x)
    return contraction(op, x.dtype, 1, m, 1, k, "mk,k->m")


@rule("aten.dot", "aten.vdot", "aten.linalg_vecdot")
def dot(op: Op) -> Work:
    """x[k] . v[k] -> y[]

    flops    2 k
    """
    x = op.inputs[0]
    *lead, k = shape(x)
    return contraction(op, x.dtype, prod(lead), 1, 1, k, "k,k->")


@rule(*aten(PACKED))
def weight_only_mm(op: Op) -> Work:
    """x[m,k] . dequantized(w)[n,k] -> y[m,n]; w is packed, so n is read off the result

    flops    2 m n k, in the element type of x        read  the packed weight and its scales
    ignores  the FLOPs of dequantization
    """
    x = op.operand("self")
    m, k = shape(x)
    return contraction(op, x.dtype, 1, m, shape(op.outputs[0])[-1], k, "mk,nk->mn")


def groups_met(groups: int, rows: int, top_k: int | None = None) -> float:
    """Of `groups` experts, those that `rows` routed rows meet: g (1 - (1 - k/g)^tokens) where a token takes k of them.

    Without `top_k` the rows are spread as widely as they go: min(g, rows).
    """
    if not top_k:
        return min(groups, rows)
    return float(groups * (1 - (1 - min(top_k / groups, 1)) ** (rows / top_k)))


def _spared(met: float, groups: int, nbytes: int) -> int:
    return round(nbytes * (groups - met) / groups) if groups else 0


@rule("aten._grouped_mm", "aten._scaled_grouped_mm", "aten._scaled_grouped_mm_v2")
def grouped_mm(op: Op) -> Work:
    """Rows in g groups, each with its own matrix (mixture of experts); `offs` holds where the groups end.

    x[r,k] . w[g,k,n] -> y[r,n]      flops 2 r k n     forward and dX
    x[g,m,k] . w[k,r] -> y[m,r]      flops 2 m k r
    x[m,r] . w[r,n] -> y[g,m,n]      flops 2 m r n     dW: each group sums its own rows
    x[g,m,k] . w[g,k,n] -> y[g,m,n]  flops 2 g m k n   a plain bmm
    assumes  balanced groups: of g matrices min(g, r) are read; where attr `top_k` tells the groups that a token
             takes, drawn alike and independently by each token, as many as `groups_met` expects
    """
    x, w = op.operand("self"), op.operand("mat2")
    a, b = shape(x), shape(w)
    spared = 0  # bytes of matrices, and of their scales, that no row meets
    if len(a) == 2 and len(b) == 3:
        groups, batch, m, k, n, equation = b[0], 1, a[0], a[1], b[2], "mk,gkn->mn"
        met = groups_met(groups, m, op.attr("top_k"))
        spared = _spared(met, groups, w.nbytes + sum(v.nbytes for v in (op.find("scales"), op.find("zeros")) if v))
        groups = max(round(met), 1) if op.attr("top_k") else groups
    elif len(a) == 3 and len(b) == 2:
        groups, batch, m, k, n, equation = a[0], 1, a[1], a[2], b[1], "gmk,kn->mn"
        spared = _spared(groups_met(groups, n, op.attr("top_k")), groups, x.nbytes)
    elif len(a) == 2:
        groups, batch, m, k, n, equation = shape(op.operand("offs"))[0], 1, a[0], a[1], b[1], "mk,kn->gmn"
    else:
        groups, batch, m, k, n, equation = a[0], a[0], a[1], a[2], b[2], "gmk,gkn->gmn"
    flops = 2 * batch * m * n * k
    dims = (("batch", batch), ("m", m), ("n", n), ("k", k), ("groups", groups))
    bytes_read = read(op) - spared
    return Work("matmul", "matrix", x.dtype, flops, flops, flops, bytes_read, written(op), dims, equation)


@rule("transformers.grouped_mm_fallback", "transformers.grouped_mm_fallback_backward")
def grouped_mm_fallback(op: Op) -> Work:
    """x[r,k] . w[g,k,n] -> y[r,n], transformers' own op for types that torch refuses; backward: dx, dw

    flops    2 r k n, backward 4 r k n        assumes balanced groups, as `grouped_mm`
    """
    x, w = op.operand("input"), op.operand("weight")
    (rows, k), (groups, _, n) = shape(x), shape(w)
    products = 2 if "grad_output" in op.operands else 1
    flops = products * 2 * rows * k * n
    dims = (("batch", products), ("m", rows), ("n", n), ("k", k), ("groups", groups))
    bytes_read = read(op) - _spared(groups_met(groups, rows, op.attr("top_k")), groups, w.nbytes)
    return Work("matmul", "matrix", x.dtype, flops, flops, flops, bytes_read, written(op), dims, "mk,gkn->mn")


@rule("aten.einsum")
def einsum(op: Op) -> Work:
    """Operands contracted from left to right, as torch does without a path

    flops    sum over the pairs of 2 x the product of the sizes of all letters of the pair
             (1 x on the vector engine where no pair sums a letter: an elementwise product)
    dims     of the heaviest pair: batch = letters kept from both sides, m, n = from one, k = summed letters
    ignores  intermediate results are neither written nor read
    """
    equation = str(op.attr("equation", "")).replace(" ", "")
    values = listed(op, "tensors")
    terms, result, sizes = _letters(equation, [shape(value) for value in values])
    kept, total, heaviest, sums = terms[0], 0, (1, 1, 1, 1), False
    for i, term in enumerate(terms[1:], start=1):
        later = set(result).union(*terms[i + 1 :])
        both = set(kept) | set(term)
        groups = (
            prod(sizes[x] for x in both if x in later and x in kept and x in term),
            prod(sizes[x] for x in both if x in later and x not in term),
            prod(sizes[x] for x in both if x in later and x not in kept),
            prod(sizes[x] for x in both if x not in later),
        )
        sums = sums or any(x not in later for x in both)
        total += prod(groups)
        heaviest = max(heaviest, groups, key=prod)
        kept = [x for x in dict.fromkeys([*kept, *term]) if x in later]
    if not sums:
        return vector(op, "pointwise" if len(terms) > 1 else "reduction", total or values[0].numel)
    dims = tuple(zip(("batch", "m", "n", "k"), heaviest, strict=True))
    flops, dtype = 2 * total, values[0].dtype
    return Work("matmul", "matrix", dtype, flops, flops, flops, read(op), written(op), dims, equation)


Letters = list[str]


def _letters(equation: str, shapes: list[tuple[int, ...]]) -> tuple[list[Letters], Letters, dict[str, int]]:
    """Letters of each operand and of the result, with sizes; `...` becomes `.0`, `.1` from the right."""
    left, arrow, right = equation.partition("->")
    terms, sizes = [], dict[str, int]()
    for text, dims in zip(left.split(","), shapes, strict=True):
        before, dots, after = text.partition("...")
        hidden = len(dims) - len(before) - len(after) if dots else 0
        term = [*before, *(f".{i}" for i in reversed(range(hidden))), *after]
        for letter, size in zip(term, dims, strict=True):
            sizes[letter] = max(size, sizes.get(letter, 1))
        terms.append(term)
    ellipsis = sorted((x for x in sizes if x[0] == "."), reverse=True)
    if arrow:
        before, dots, after = right.partition("...")
        return terms, [*before, *(ellipsis if dots else []), *after], sizes
    joined = [letter for term in terms for letter in term if letter[0] != "."]
    return terms, [*ellipsis, *sorted(x for x in set(joined) if joined.count(x) == 1)], sizes
