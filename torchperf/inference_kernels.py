"""Which ops an engine that merges runs as one kernel: projections of one input, the choice of experts, their rows.

products     q, k and v, gate and up: products of one x with weights of one module are one product with all columns
routing      scores to weights of the experts taken: one kernel, however many ops the model wrote
experts      rows are read and written through an index inside the products of the experts, and weighed there: the
             sort of rows by expert and the sum over a token's experts are kernels of their own, permutations are none
"""

from __future__ import annotations

from dataclasses import replace

from .annotate import works as annotated
from .graph.graph import Block, Graph
from .graph.runtime import Runtime
from .graph.tensor import Value
from .graph.work import Work, Works

_PRODUCTS = {"aten.mm.default": "self", "aten.addmm.default": "mat1"}
_KEPT = ("matmul", "collective", "attention", "view")


def works_of(graph: Graph, runtime: Runtime) -> Works:
    """Works of a program's ops; of those that run as one kernel the first has the work of all, the others none."""
    rows = annotated(graph)
    if runtime.serving is None or not runtime.serving.merged:
        return tuple(tuple(row) for row in rows)
    return tuple(_merged(block, list(row)) for block, row in zip(graph.blocks, rows, strict=True))


def _merged(block: Block, row: list[Work]) -> tuple[Work, ...]:
    _products(block, row)
    for i in (*_permutations(block, row), *_routing(block, row)):
        row[i] = _nothing(row[i])
    return tuple(row)


def _nothing(work: Work) -> Work:
    return Work("view", "none", work.dtype)


def _products(block: Block, row: list[Work]) -> None:
    groups: dict[tuple[Value, str, int], list[int]] = {}
    for i, op in enumerate(block.ops):
        role = _PRODUCTS.get(op.name)
        x = op.find(role) if role else None
        if x is not None and any(block.storages[v.slot].kind == "param" for v in op.inputs):
            groups.setdefault((x, op.module.rpartition(".")[0], row[i].dim("k")), []).append(i)
    for (x, _, _), members in groups.items():
        if len(members) > 1:
            joined = _joined([row[i] for i in members], x.nbytes)
            for i in members:
                row[i] = _nothing(row[i])
            row[members[0]] = joined


def _joined(works: list[Work], x_bytes: int) -> Work:
    first = works[0]
    n = sum(work.dim("n") for work in works)
    return replace(
        first,
        flops=sum(w.flops for w in works),
        flops_noncausal=sum(w.flops_noncausal for w in works),
        flops_executed=sum(w.flops_executed for w in works),
        bytes_read=sum(w.bytes_read for w in works) - (len(works) - 1) * x_bytes,
        bytes_written=sum(w.bytes_written for w in works),
        dims=tuple((name, n if name == "n" else size) for name, size in first.dims),
    )


def _permutations(block: Block, row: list[Work]) -> list[int]:
    """Ops of a module of experts outside its products, but its first sort and the sum over a token's experts."""
    grouped: dict[str, list[int]] = {}
    for i, op in enumerate(block.ops):
        if "grouped_mm" in op.name:
            grouped.setdefault(op.module, []).append(i)
    found: list[int] = []
    for module, products in grouped.items():
        sorts = 0
        for i, op in enumerate(block.ops):
            if op.module != module or row[i].kind in _KEPT or products[0] < i < products[-1]:
                continue
            if row[i].kind == "sort":
                sorts += 1
            sums = row[i].kind == "reduction" and i > products[-1]
            if not sums and not (row[i].kind == "sort" and sorts == 1):
                found.append(i)
    return found


def _routing(block: Block, row: list[Work]) -> list[int]:
    """Ops of a module with a top-k that are no larger than what it chooses from, but the first top-k."""
    chosen: dict[str, tuple[int, int]] = {}
    for i, op in enumerate(block.ops):
        if op.name.startswith("aten.topk") and op.module not in chosen:
            chosen[op.module] = i, op.inputs[0].numel
    found = []
    for i, op in enumerate(block.ops):
        if op.module in chosen and row[i].kind not in _KEPT:
            first, size = chosen[op.module]
            if i != first and all(v.numel <= size for v in (*op.inputs, *op.outputs)):
                found.append(i)
    return found
