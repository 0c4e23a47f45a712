"""Constants of the attention prices: what each means, its unit, and how it is read from a fit."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from ..graph.system import Accelerator, Fit

Floats = NDArray[np.float64]
Given = dict[str, dict[str, Floats | float]]  # term -> symbol -> number

WIDEST_HEAD = 256  # a wider head does not fit the registers of one CTA: its products run once more
SPLIT_KEYS = 128  # fewest keys that a CTA of split decode takes
BACKWARD_TILE = 128  # keys of one CTA of the backward
MEMORY = "bytes few / (e_m bandwidth (1 + (l2_ratio - 1) residence))"
FORMULAS = {  # compute, then memory
    "prefill": ("ctas (cta + tile (visible + waste) pair) / units + tail longest", MEMORY.replace(" few", "")),
    "decode": ("load start + reach key", MEMORY),
    "backward": ("ctas (2 cta + tile (visible + waste) pair) / units + tail longest", "bytes / (e_m bandwidth)"),
}


@dataclass(frozen=True, slots=True)
class Peaks:
    """What the formulas read of a device: FLOP/s of the matrix and vector (fp32) units, B/s, bytes of L2, SMs."""

    matrix: float
    vector: float
    bandwidth: float
    l2: float
    units: float

    @classmethod
    def of(cls, accelerator: Accelerator, dtype: str) -> Peaks:
        """Peaks for products in `dtype`; TorchperfError where the device lacks it."""
        matrix = accelerator.peak_flops_per_s(accelerator.matmul_engine(dtype), dtype)
        vector = accelerator.peak_flops_per_s("vector", "fp32")
        memory = accelerator.memory
        return cls(matrix, vector, memory.bandwidth.value, memory.l2.value, accelerator.num_units.value)


@dataclass(frozen=True, slots=True)
class Prefill:
    """Constants of many queries a sequence.

    floor      seconds of the op and its launches, the write of the cache among them where the clock had it
    cta        seconds of a block of queries before and after its keys
    e_c        share of the matrix peak, at most 1
    softmax    vector FLOPs that one (query, key) pair costs beside the products
    tail       blocks of the longest kind that run after the others: imbalance and ramps
    e_m        share of the bandwidth
    l2_ratio   bandwidth of the L2 over that of the memory
    tile       queries of one CTA
    packed     1 where the query heads of a key head share a CTA
    qo_passes  times that q and out are read or written, both counted
    kv_passes  times that new keys and values are
    """

    floor: float
    cta: float
    e_c: float
    softmax: float
    tail: float
    e_m: float
    l2_ratio: float
    tile: float
    packed: float
    qo_passes: float
    kv_passes: float

    @classmethod
    def of(cls, fit: Fit) -> Prefill:
        """Read by name; KeyError where the fit lacks one."""
        return cls(*(fit[field.name] for field in fields(cls)))


@dataclass(frozen=True, slots=True)
class Decode:
    """Constants of one query a sequence.

    floor         seconds of the op and its launches
    combine       seconds that joining the parts of a split sequence costs
    cta           seconds of a CTA besides its keys, all query heads of a key head together
    head          seconds that such a CTA takes for each of the query heads
    stream        rate at which SMs together take keys through such CTAs, over the bandwidth
    vector_cta    the same as `cta`, each query head by itself
    vector_share  share of the fp32 vector peak of that second kernel; 0 where there is none
    e_m           share of the bandwidth
    fill          share of the SMs that the parts of split sequences reach
    channel       how much slower memory is with few CTAs: in units of SMs
    l2_ratio      bandwidth of the L2 over that of the memory
    max_group     most query heads of a key head that one CTA takes
    split_group   fewest query heads of a key head at which the kernel splits the keys
    """

    floor: float
    combine: float
    cta: float
    head: float
    stream: float
    vector_cta: float
    vector_share: float
    e_m: float
    fill: float
    channel: float
    l2_ratio: float
    max_group: float
    split_group: float

    @classmethod
    def of(cls, fit: Fit) -> Decode:
        """Read by name; KeyError where the fit lacks one."""
        return cls(*(fit[field.name] for field in fields(cls)))


@dataclass(frozen=True, slots=True)
class Shape:
    """Dims of many attention ops, each an array of the same length.

    pairs       (query, key) pairs that the mask leaves, per head
    element     bytes of an element of q and out
    kv_element  bytes of an element of the cache
    """

    batch: Floats
    heads: Floats
    kv_heads: Floats
    q: Floats
    kv: Floats
    head_dim: Floats
    v_head_dim: Floats
    pairs: Floats
    element: Floats
    kv_element: Floats

    @property
    def visible(self) -> Floats:
        """Mean number of keys that a query sees."""
        return self.pairs / self.q

    @property
    def widths(self) -> Floats:
        """Elements of a key and a value together."""
        return self.head_dim + self.v_head_dim

    @property
    def passes(self) -> Floats:
        """Times that a head too wide for the registers runs its products."""
        return np.ceil(np.maximum(self.head_dim, self.v_head_dim) / WIDEST_HEAD)


def dtype_class(dtype: str, kv_element: float | None = None) -> str:
    """`fp8`, `kv_fp8` (an 8-bit cache under 16-bit arithmetic) or `16bit`, which every other type takes."""
    if dtype.startswith("fp8"):
        return "fp8"
    return "kv_fp8" if kv_element == 1 else "16bit"
