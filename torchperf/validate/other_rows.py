"""Rows of norms, activations, embeddings, quantise and mixtures of experts -> the work that prices the same thing.

Clocks: Vidur's and aiconfigurator's is the kernel's own. NeuSight's times one eager op from an idle device: the launch
shows as long as it is longer than the kernel, and half of it always does:

    clock = max(clock_floor, clock_floor / 2 + kernel)

That is a constant of the clock, kept with the fit and no part of the price.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from ..graph.price import Price
from ..graph.system import Accelerator
from ..graph.work import Work
from ..price.matmul import price as matmul
from ..price.memory_bound import fit_of, price
from .cells import positive, whole
from .rows import on_clock

COLUMNS = ("source", "gpu", "op", "shape", "dtype", "measured_us")
DTYPES = {"float32": ("fp32", 4), "float16": ("fp16", 2), "bfloat16": ("bf16", 2), "bfloat16->fp8": ("bf16", 2)}
EAGER = "neusight"
MOST_EXPERTS = 1_000_000
SIZES = ("tokens", "hidden", "inter", "topk", "experts", "tp", "ep")


@dataclass(frozen=True, slots=True)
class _Kind:
    """A named op.

    kernel  whose constants it takes
    moved   elements read and written for each of the shape
    kind    of annotate.KINDS
    flops   for each of the shape
    """

    kernel: str
    moved: float
    kind: str = "pointwise"
    flops: int = 1


# silu_mul reads two halves and writes one, of the width in the shape; rope works in place; quantise writes half as wide
OPS = {
    "add": _Kind("elementwise", 3),
    "mul": _Kind("elementwise", 3),
    "relu": _Kind("elementwise", 2),
    "gelu": _Kind("elementwise", 2, flops=10),
    "tanh": _Kind("elementwise", 2, flops=10),
    "silu_mul": _Kind("gated", 3, flops=6),
    "rope": _Kind("rope", 2, flops=3),
    "softmax": _Kind("rows", 2, "softmax", 5),
    "layernorm": _Kind("rows", 2, "norm", 8),
    "rmsnorm": _Kind("serving_rows", 2, "norm", 4),
    "embedding": _Kind("gather", 2, "gather", 0),
    "fp8_quantize_given_scale": _Kind("quantize", 1.5),
}


@dataclass(frozen=True, slots=True)
class Case:
    """One measured row; `eager` where NeuSight's clock measured it."""

    gpu: str
    op: str
    kernel: str
    shape: tuple[int, ...]
    work: Work
    eager: bool
    seconds: float


@dataclass(frozen=True, slots=True)
class Experts:
    """One measured mixture of experts: two grouped products and an activation, on one rank.

    tokens   in all; each goes to `topk` of `experts`, of which experts / ep lie here, inter / tp wide
    skew     exponent of the power law of tokens over experts; 0 where they are balanced
    """

    gpu: str
    dtype: str
    tokens: int
    hidden: int
    inter: int
    topk: int
    experts: int
    tp: int
    ep: int
    skew: float
    seconds: float


GIVEN = {"bfloat16": ("bf16", 2.0), "fp8": ("fp8", 1.0), "nvfp4": ("fp4", 0.5)}  # type, bytes of an element


def experts_met(row: Experts) -> int:
    """Experts of a rank that at least one token reaches: as many as it can be if balanced, else the mean of a draw.

    1 - (1 - p_i)^draws summed over i, with p_i as i^-skew, shared out over the ranks
    """
    draws, here = row.tokens * row.topk, max(row.experts // row.ep, 1)
    if not row.skew:
        return max(min(here, round(draws / row.ep)), 1)
    p = np.arange(1, row.experts + 1, dtype=float) ** -row.skew
    met = np.sum(1 - (1 - p / p.sum()) ** draws)
    return max(min(here, round(float(met) / row.ep)), 1)


def experts_works(row: Experts) -> tuple[Work, Work, Work]:
    """Up (gate and up together), silu * up, down: the rows that land on the mean rank."""
    dtype, element = GIVEN[row.dtype]
    rows = max(round(row.tokens * row.topk / row.ep), 1)
    groups, inter = experts_met(row), max(row.inter // row.tp, 1)

    def product(n: int, k: int) -> Work:
        dims = (("batch", 1), ("m", rows), ("n", n), ("k", k), ("groups", groups))
        read, written = int((rows * k + groups * n * k) * element), 2 * rows * n
        flops = 2 * rows * n * k
        return Work("matmul", "matrix", dtype, flops, flops, flops, read, written, dims, "mk,gkn->mn")

    elements = rows * inter
    flops = OPS["silu_mul"].flops * elements
    gated = Work("pointwise", "vector", "bf16", flops, flops, flops, 4 * elements, 2 * elements)
    return product(2 * inter, row.hidden), gated, product(row.hidden, inter)


def experts_parts(row: Experts, accelerator: Accelerator) -> tuple[float, float]:
    """Seconds of the products and the activation; and of taking tokens to experts and back, at peak bandwidth.

    moved  2 b hidden (tokens + rows): each token read and written once, and so each row of an expert
    raises TorchperfError where the device has no fit of matmul
    """
    up, gated, down = experts_works(row)
    products = sum(matmul(work, accelerator).seconds for work in (up, down))
    rows = up.dim("m")
    moved = 2 * 2 * row.hidden * (row.tokens + rows) / accelerator.memory.bandwidth.value
    return products + price(gated, accelerator, "gated").seconds, moved


def experts_seconds(
    products: NDArray[np.float64], moved: NDArray[np.float64], floor: float, slow: float, e_m: float
) -> NDArray[np.float64]:
    """floor + slow products + moved / e_m: routing's kernels, grouped products beside plain ones, the moves."""
    return floor + slow * products + moved / e_m


def predict_experts(row: Experts, accelerator: Accelerator) -> float:
    """Our time of a mixture of experts; TorchperfError where the device has no fit `memory.experts`."""
    fit = accelerator.fit("memory.experts")
    products, moved = (np.array([part]) for part in experts_parts(row, accelerator))
    return float(experts_seconds(products, moved, fit["floor"], fit["slow"], fit["e_m"])[0])


def case(row: Mapping[str, str]) -> Case | Experts | str:
    """The case of a row of the file, or why it cannot be priced."""
    missing = [name for name in COLUMNS if not row.get(name)]
    if missing:
        return "no " + ", ".join(f"`{name}`" for name in missing)
    seconds = positive(row["measured_us"], "measured_us") * 1e-6
    if row["op"] == "moe_ffn":
        return _experts(row, seconds)
    known = OPS.get(row["op"])
    if known is None:
        return f"no op `{row['op']}`"
    if row["dtype"] not in DTYPES:
        return f"no dtype `{row['dtype']}`"
    dtype, element = DTYPES[row["dtype"]]
    shape = tuple(whole(size, "shape") for size in row["shape"].split("x"))
    elements = whole(str(prod(shape)), "elements of the shape")
    written = elements if known.kernel == "quantize" else elements * element
    flops = known.flops * elements
    work = Work(
        known.kind, "vector", dtype, flops, flops, flops,
        bytes_read=int(elements * element * known.moved) - written, bytes_written=written,
    )  # fmt: skip
    return Case(row["gpu"], row["op"], known.kernel, shape, work, row["source"].startswith(EAGER), seconds)


def _experts(row: Mapping[str, str], seconds: float) -> Experts | str:
    given = dict(part.split("=", 1) for part in row["shape"].split(";"))
    law = re.fullmatch(r"power_law_([\d.]+)", given.get("dist", ""))
    if not law and given.get("dist") != "balanced":
        return f"no distribution `{given.get('dist', '')}`"
    tokens, hidden, inter, topk, experts, tp, ep = (whole(given[name], name) for name in SIZES)
    if experts > MOST_EXPERTS:
        return f"more than {MOST_EXPERTS:,} experts"
    skew = float(law[1]) if law else 0.0
    return Experts(row["gpu"], row["dtype"], tokens, hidden, inter, topk, experts, tp, ep, skew, seconds)


def predict(row: Case, accelerator: Accelerator) -> tuple[Price, float]:
    """Our price of a case, and the seconds that its clock would show."""
    known = price(row.work, accelerator, row.kernel, resident=True)
    if not row.eager:
        return known, known.seconds
    floor = fit_of(accelerator, row.kernel)["clock_floor_neusight"]
    return known, float(on_clock(np.array([known.seconds]), floor)[0])
