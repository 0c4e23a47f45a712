"""What no saved graph may hold though it is well formed: words that no capture writes, sizes without bound.

The bounds are far above what models need (the largest of the bundled ones has 7,000 stored ops and a file of 3 MB);
they keep a damaged or hostile file from taking the machine's time and memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from .cache import CacheEntry
from .dtype import bits
from .expr import LARGEST, Dim, Expr, Ratio, Scaled
from .graph import MODES, Block, Graph, Parameter
from .op import PHASES, Op
from .tensor import Value

MAX_BYTES = 2**28  # of a file
MAX_OPS = 500_000  # stored
MAX_VALUES = 2_000_000
MAX_RUN = 20_000_000  # ops as the segments run them
MAX_DIMS = 64  # of a tensor, as torch has it
MAX_DEPTH = 16  # of lists in an argument


def check(graph: Graph) -> None:
    """Raises ValueError, with what is wrong, and TorchperfError for an unknown dtype."""
    facts = graph.facts
    sizes = {name for name, *_ in facts.ranges}
    if {name for name, _ in facts.sizes} != sizes or not {name for name, _ in facts.limits} <= sizes:
        raise ValueError("the sizes of its facts are not those of its ranges")
    if facts.mode not in MODES:
        raise ValueError(f"unknown mode `{facts.mode}`")
    for parameter in (*facts.parameters, *facts.buffers):
        _parameter(parameter)
    for given in facts.inputs:
        bits(given.dtype)
        _dims(given.shape, sizes)
    for entry in facts.cache:
        _cache(entry)
    _bounded(graph)
    for block in graph.blocks:
        _block(block, sizes)


def _bounded(graph: Graph) -> None:
    stored = sum(len(block.ops) for block in graph.blocks)
    values = sum(len(op.inputs) + len(op.outputs) for block in graph.blocks for op in block.ops)
    for what, number, most in (
        ("ops", stored, MAX_OPS), ("operands", values, MAX_VALUES), ("ops to run", graph.num_ops, MAX_RUN),
        ("storages", graph.num_storages, MAX_VALUES),
    ):  # fmt: skip
        if number > most:
            raise ValueError(f"it has {number:,} {what}, more than {most:,}")


def _parameter(parameter: Parameter) -> None:
    if not parameter.names:
        raise ValueError("a parameter has no name")
    bits(parameter.dtype)
    if min(parameter.shape, default=0) < 0 or math.prod(parameter.shape) > LARGEST:
        raise ValueError(f"parameter `{parameter.names[0]}` has shape {list(parameter.shape)}")


def _cache(entry: CacheEntry) -> None:
    bits(entry.dtype)
    if entry.heads < 1 or min(entry.elements, entry.window, *entry.layers, 0) < 0:
        raise ValueError(f"the cache of `{entry.module}` has no heads, or a size below 0")


def _block(block: Block, sizes: set[str]) -> None:
    if block.phase not in PHASES:
        raise ValueError(f"unknown phase `{block.phase}`")
    dims: set[Dim] = {storage.nbytes for storage in block.storages}
    for op in block.ops:
        _op(op, sizes)
    for value in block.values():
        _value(value)
        dims.update((*value.shape, *value.strides, value.offset))
    _dims(dims, sizes)


def _dims(dims: Iterable[Dim], sizes: set[str]) -> None:
    for dim in dims:
        if isinstance(dim, int):
            if not 0 <= dim <= LARGEST:
                raise ValueError(f"the size {dim} is negative, or more than 2**63 - 1")
        elif not _names(dim) <= sizes:
            raise ValueError(f"`{dim}` names a size that the graph has not")


def _value(value: Value) -> None:
    bits(value.dtype)
    if len(value.shape) > MAX_DIMS:
        raise ValueError(f"a tensor of {len(value.shape)} dims, more than {MAX_DIMS}")


def _op(op: Op, sizes: set[str]) -> None:
    if op.phase not in PHASES:
        raise ValueError(f"unknown phase `{op.phase}`")
    if not all(op.name.split(".", 1)) or "." not in op.name:
        raise ValueError(f"`{op.name}` is no operator: it has no namespace")
    for name, attr in op.attrs:
        _attr(attr, f"argument `{name}` of op `{op.name}`", sizes, 0)


def _attr(attr: object, what: str, sizes: set[str], depth: int) -> None:
    if depth > MAX_DEPTH:
        raise ValueError(f"{what} is nested more than {MAX_DEPTH} deep")
    if isinstance(attr, tuple):
        for item in attr:
            _attr(item, what, sizes, depth + 1)
    elif isinstance(attr, int) and abs(attr) > 2 * LARGEST + 1:  # an unsigned one may be that large
        raise ValueError(f"{what} is more than 64 bits wide")
    expr = attr.denominator if isinstance(attr, Ratio) else attr.expr if isinstance(attr, Scaled) else attr
    if isinstance(expr, Expr) and not _names(expr) <= sizes:
        raise ValueError(f"{what} names a size that the graph has not")


def _names(dim: Expr) -> set[str]:
    return {name for term in dim.terms for _, name, _ in term.factors}
