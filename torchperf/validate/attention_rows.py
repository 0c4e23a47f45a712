"""Rows of measured attention -> the call that prices the same thing, and how the clock differs from a run.

The clock (aiconfigurator) replays one set of tensors in a CUDA graph, op and write of the cache together: what fits
the L2 stays in it, so cases are priced as resident.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..graph.price import Price
from ..graph.system import Accelerator
from ..graph.work import Work
from ..price.attention import ELEMENT, KERNELS, price
from ..price.attention_constants import Shape, dtype_class
from .cells import positive, whole

COLUMNS = (
    "source",
    "gpu",
    "dtype",
    "phase",
    "batch",
    "heads",
    "kv_heads",
    "head_dim",
    "q_len",
    "kv_len",
    "measured_us",
)
DTYPES = {"bfloat16": ("bf16", 2), "float16": ("fp16", 2), "bfloat16/kv_fp8": ("bf16", 1), "fp8": ("fp8", 1)}
PHASES = ("prefill", "decode")


@dataclass(frozen=True, slots=True)
class Case:
    """One measured row; a query of one token goes to vLLM's decode kernel whatever the row calls it.

    dtype, kv_element  type of q, and bytes of an element of the cache
    """

    gpu: str
    kernel: str
    phase: str
    dtype: str
    kv_element: int
    batch: int
    heads: int
    kv_heads: int
    head_dim: int
    q: int
    kv: int
    causal: bool
    seconds: float

    @property
    def pairs(self) -> int:
        """(query, key) pairs that the mask leaves."""
        return self.q * (self.kv - self.q) + self.q * (self.q + 1) // 2 if self.causal else self.q * self.kv

    @property
    def key(self) -> str:
        """Key of the fit that prices it: phase, dtype class, kernel."""
        return f"{self.phase}.{dtype_class(self.dtype, self.kv_element)}.{self.kernel}"

    @property
    def work(self) -> Work:
        """The op as the annotated graph would state it."""
        flops = 4 * self.batch * self.heads * self.pairs * self.head_dim
        dims = (
            ("batch", self.batch), ("heads", self.heads), ("kv_heads", self.kv_heads), ("q", self.q), ("kv", self.kv),
            ("head_dim", self.head_dim), ("v_head_dim", self.head_dim), ("pairs", self.pairs),
        )  # fmt: skip
        queries = self.batch * self.heads * self.q * self.head_dim * ELEMENT[self.dtype]
        cache = 2 * self.batch * self.kv_heads * self.kv * self.head_dim * self.kv_element
        return Work("attention", "matrix", self.dtype, flops, flops, flops, queries + cache, queries, dims)


def case(row: Mapping[str, str]) -> Case | str:
    """The case of a row of the file, or why it cannot be priced."""
    missing = [name for name in COLUMNS if not row.get(name)]
    if missing:
        return "no " + ", ".join(f"`{name}`" for name in missing)
    kernel = next((name for name in KERNELS if f"/{name}/" in row["source"]), "")
    if not kernel:
        return f"no kernel known in `{row['source']}`"
    if row["dtype"] not in DTYPES:
        return f"no dtype `{row['dtype']}`"
    if row["phase"] not in PHASES:
        return f"no phase `{row['phase']}`"
    dtype, kv_element = DTYPES[row["dtype"]]
    q = whole(row["q_len"], "q_len")
    return Case(
        gpu=row["gpu"],
        kernel=kernel,
        phase="decode" if q == 1 and kernel == "vllm" else row["phase"],
        dtype=dtype,
        kv_element=kv_element,
        batch=whole(row["batch"], "batch"),
        heads=whole(row["heads"], "heads"),
        kv_heads=whole(row["kv_heads"], "kv_heads"),
        head_dim=whole(row["head_dim"], "head_dim"),
        q=q,
        kv=whole(row["kv_len"], "kv_len"),
        causal=row.get("causal", "1") == "1",
        seconds=positive(row["measured_us"], "measured_us") * 1e-6,
    )


def shape(cases: Sequence[Case]) -> Shape:
    """Dims of many cases at once."""
    rows = [
        (c.batch, c.heads, c.kv_heads, c.q, c.kv, c.head_dim, c.head_dim, c.pairs, ELEMENT[c.dtype], c.kv_element)
        for c in cases
    ]
    return Shape(*np.array(rows, dtype=float).T)


def predict(row: Case, accelerator: Accelerator) -> Price:
    """Our price of a case."""
    return price(row.work, accelerator, row.kernel, kv_element=row.kv_element, resident=True, phase=row.phase)
