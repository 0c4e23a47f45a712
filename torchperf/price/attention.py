"""Fused attention on one device: prefill, decode, and the backward of training.

Every price is floor + hypot(compute, memory): the two overlap, but not wholly where they are alike.

ignores  paging of the cache, sequences of unequal length (the caller's work is a mean), clocks under power
error    per device, kernel and dtype class with each fit, on rows held out of it
source   [dao2022] tiles and online softmax, [dao2023] one block of queries a CTA, split KV in decode;
         constants fitted to the rows that each fit names
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..graph.errors import TorchperfError
from ..graph.price import Price, Term
from ..graph.system import SAME_RATE, Accelerator, Fit
from ..graph.work import Work
from .attention_constants import BACKWARD_TILE, FORMULAS, SPLIT_KEYS, Decode, Given, Peaks, Prefill, Shape, dtype_class
from .residence import residence

Floats = NDArray[np.float64]
KERNELS = ("vllm", "trtllm")
ELEMENT = {"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2, "fp8": 1, "fp8_e5m2": 1}


class Parts(NamedTuple):
    """Seconds of a price: floor + hypot(compute, memory); `resident` is the share that the L2 serves.

    given   what the formulas of compute and memory (FORMULAS) read
    """

    floor: Floats
    compute: Floats
    memory: Floats
    resident: Floats
    given: Given

    @property
    def seconds(self) -> Floats:
        """Time of the op."""
        return self.floor + np.hypot(self.compute, self.memory)


def prefill(shape: Shape, c: Prefill, peaks: Peaks, resident: bool = False) -> Parts:
    """Many queries a sequence, flash kernel: one CTA a block of queries and head, over the keys it sees.

    pair     2 (D + Dv) ceil(D/256) / (e_c peak/SM) + softmax / (vector/SM)          seconds of one (query, key) pair
    block    cta + tile (visible + waste) pair       half a block is masked in vain: waste = min(tile, q)/2, and with
                                                    tile Hkv/H for tile if packed
    longest  cta + tile min(kv, 2 visible) pair      the last block of the triangle
    compute  ctas block / SM + tail longest       ctas = B H ceil(q/tile), or B Hkv ceil(q H/Hkv / tile) if packed
    memory   bytes / (e_m bandwidth (1 + (l2_ratio - 1) residence))
    bytes    B H q (D + Dv) b qo_passes/2 + B Hkv (D + Dv) (kv_passes q + seen - q) b_kv,  seen = min(kv, q + visible)
    """
    group = shape.heads / shape.kv_heads
    packed = c.packed > 0
    rows = shape.q * group if packed else shape.q
    ctas = shape.batch * (shape.kv_heads if packed else shape.heads) * np.ceil(rows / c.tile)
    waste = np.minimum(c.tile / (group if packed else 1.0), shape.q) / 2
    pair = _pair(shape, c, peaks)
    block = c.cta + c.tile * (shape.visible + waste) * pair
    longest = c.cta + c.tile * np.minimum(shape.kv, 2 * shape.visible) * pair
    seen = np.minimum(shape.kv, shape.q + shape.visible)
    kv_row = shape.batch * shape.kv_heads * shape.widths * shape.kv_element
    q_bytes = shape.batch * shape.heads * shape.q * shape.widths * shape.element
    nbytes = q_bytes * c.qo_passes / 2 + kv_row * np.maximum(seen + (c.kv_passes - 1) * shape.q, seen)
    share = residence(q_bytes + 2 * kv_row * seen, peaks.l2, resident)
    memory = nbytes / (c.e_m * peaks.bandwidth * (1 + (c.l2_ratio - 1) * share))
    given: Given = {
        "compute": _blocks(c, peaks, ctas=ctas, tile=c.tile, visible=shape.visible, waste=waste, pair=pair,
                           longest=longest),
        "memory": {"bytes": nbytes, "e_m": c.e_m, "bandwidth": peaks.bandwidth, "l2_ratio": c.l2_ratio,
                   "residence": share},
    }  # fmt: skip
    return Parts(np.full_like(block, c.floor), ctas * block / peaks.units + c.tail * longest, memory, share, given)


def _blocks(c: Prefill, peaks: Peaks, **given: Floats | float) -> dict[str, Floats | float]:
    return given | {"cta": c.cta, "units": peaks.units, "tail": c.tail}


def _pair(shape: Shape, c: Prefill, peaks: Peaks) -> Floats:
    """Seconds that one SM takes for a (query, key) pair: two products, then the softmax on the vector units."""
    flops = 2 * shape.widths * shape.passes
    return flops * peaks.units / (c.e_c * peaks.matrix) + c.softmax * peaks.units / peaks.vector


def decode(shape: Shape, c: Decode, peaks: Peaks, resident: bool = False) -> Parts:
    """One query a sequence: the cache is read once, by CTAs that may each take a part of the keys.

    grouped  key = max((D + Dv) b ceil(D/256) / (stream bandwidth/SM), 2 G (D + Dv) / (peak/SM));  n = B Hkv
    vector   key = 2 (D + Dv) / (vector_share vector/SM), each query head by itself;               n = B H
    start    grouped: cta + head G                                                   vector: vector_cta
    whole    compute = max(1, n/SM) (start + kv key)
    split    compute = max(1, n/SM) start + max(kv n/(fill SM), min(kv, 128)) key, and `combine` on the floor
    memory   bytes (1 + channel SM / max(B Hkv, SM)) / (e_m bandwidth (1 + (l2_ratio - 1) residence))

    The fastest of the four that the kernel has: groups up to max_group may be grouped, from split_group on split.
    """
    group = shape.heads / shape.kv_heads
    keys, units = shape.visible, peaks.units
    row = shape.widths * shape.kv_element
    nbytes = shape.batch * shape.kv_heads * keys * row + shape.batch * shape.heads * shape.widths * shape.element
    share = residence(nbytes, peaks.l2, resident)
    few = 1 + c.channel * units / np.maximum(shape.batch * shape.kv_heads, units)
    memory = nbytes * few / (c.e_m * peaks.bandwidth * (1 + (c.l2_ratio - 1) * share))
    stream = row * shape.passes * units / (c.stream * peaks.bandwidth)
    tensor = 2 * group * shape.widths * units / peaks.matrix
    cta = c.cta + c.head * group
    ways = [(shape.batch * shape.kv_heads, cta, np.maximum(stream, tensor), group <= c.max_group)]
    if c.vector_share > 0:
        vector = 2 * shape.widths * units / (c.vector_share * peaks.vector)
        alone = np.full_like(group, c.vector_cta)
        ways.append((shape.batch * shape.heads, alone, vector, np.ones_like(group, dtype=bool)))
    best = np.full_like(memory, np.inf)
    compute, floor = np.zeros_like(memory), np.full_like(memory, c.floor)
    taken = {name: np.zeros_like(memory) for name in ("load", "start", "reach", "key")}
    for ctas, start, key, allowed in ways:
        load = np.maximum(1.0, ctas / units)
        part = np.maximum(keys * ctas / (c.fill * units), np.minimum(keys, SPLIT_KEYS))
        whole = (c.floor, load * (start + keys * key), allowed)
        split = (c.floor + c.combine, load * start + part * key, allowed & (group >= c.split_group))
        for (base, time, possible), reach in ((whole, load * keys), (split, part)):
            seconds = np.where(possible, base + np.hypot(time, memory), np.inf)
            better = seconds < best
            for name, value in (("load", load), ("start", start), ("reach", reach), ("key", key)):
                taken[name] = np.where(better, value, taken[name])
            best, compute = np.where(better, seconds, best), np.where(better, time, compute)
            floor = np.where(better, base, floor)
    given: Given = {
        "compute": dict(taken),
        "memory": {"bytes": nbytes, "few": few, "e_m": c.e_m, "bandwidth": peaks.bandwidth, "l2_ratio": c.l2_ratio,
                   "residence": share},
    }  # fmt: skip
    return Parts(floor, compute, memory, share, given)


def backward(shape: Shape, c: Prefill, peaks: Peaks, share: float, kernels: float) -> Parts:
    """Flash attention's backward: one CTA a block of 128 keys and query head; five products, Q K^T among them.

    pair     (3 D + 2 Dv) / (D + Dv) times that of the forward / share
    compute  B H ceil(kv/128) (2 cta + 128 (pairs/kv + 64) pair) / SM + tail longest
    memory   (q, out, dOut, dQ, its fp32 sum; k, v; dK, dV of each query head: each once) / (e_m bandwidth)
    floor    `kernels` launches: dOut . out, the main one, dQ to the dtype of q
    source   [dao2023] algorithm 2; `share` of the forward's efficiency: fit attention.backward
    """
    seen = shape.pairs / np.maximum(shape.kv, 1)
    pair = (2 + shape.head_dim / shape.widths) * _pair(shape, c, peaks) / share
    ctas = shape.batch * shape.heads * np.ceil(shape.kv / BACKWARD_TILE)
    waste = BACKWARD_TILE / 2
    block = 2 * c.cta + BACKWARD_TILE * (seen + waste) * pair
    longest = 2 * c.cta + BACKWARD_TILE * (np.minimum(shape.q, 2 * seen) + waste) * pair
    queries = shape.batch * shape.heads * shape.q
    keys = shape.batch * shape.kv * shape.widths * shape.kv_element
    nbytes = queries * (2 * shape.widths * shape.element + 4 * shape.head_dim) + keys * (shape.kv_heads + shape.heads)
    compute = ctas * block / peaks.units + c.tail * longest
    memory = nbytes / (c.e_m * peaks.bandwidth)
    given: Given = {
        "compute": _blocks(c, peaks, ctas=ctas, tile=float(BACKWARD_TILE), visible=seen, waste=waste, pair=pair,
                           longest=longest),
        "memory": {"bytes": nbytes, "e_m": c.e_m, "bandwidth": peaks.bandwidth},
    }  # fmt: skip
    return Parts(np.full_like(compute, kernels * c.floor), compute, memory, np.zeros_like(compute), given)


def shape_of(work: Work, kv_element: float | None = None) -> Shape:
    """Arrays of length 1 from the dims of one op; `kv_element` where the cache has another type than q."""
    element = ELEMENT.get(work.dtype, 2)
    kv_element = kv_element or element
    if "kv_width" in dict(work.dims):  # a value is a part of its key: the cache holds one vector for both
        kv_element *= work.dim("kv_width") / (work.dim("head_dim") + work.dim("v_head_dim"))
    dims = (work.dim(n) for n in ("batch", "heads", "kv_heads", "q", "kv", "head_dim", "v_head_dim", "pairs"))
    sizes = (*dims, element, kv_element)
    return Shape(*(np.array([float(size)]) for size in sizes))


def fit_of(accelerator: Accelerator, phase: str, dtypes: str, kernel: str) -> Fit:
    """The fit of that phase, dtype class and kernel; failing that of the other kernel, then of 16 bit."""
    if kernel not in (*KERNELS, "default"):
        has = ", ".join(f"`{name}`" for name in ("default", *KERNELS))
        raise TorchperfError(f"no attention kernel `{kernel}`", hint=f"choose one of {has}")
    order = (kernel, *(name for name in KERNELS if name != kernel))
    for dtype in dict.fromkeys((dtypes, "16bit")):
        for name in order:
            found = accelerator.find_fit(f"attention.{phase}.{dtype}.{name}")
            if found:
                return found
    return accelerator.fit(f"attention.{phase}.{dtypes}.{KERNELS[0] if kernel == 'default' else kernel}")


def price(
    work: Work,
    accelerator: Accelerator,
    kernel: str = "default",
    backward_pass: bool = False,
    kv_element: float | None = None,
    resident: bool = False,
    phase: str = "",
) -> Price:
    """Device time of one attention op.

    kernel      `vllm` or `trtllm`: the serving kernel, which writes the cache too; `default` is PyTorch's own:
                the constants of the first that the device has, its floor one kernel's, its tensors contiguous
                (fit attention.contiguous) and written to no cache
    kv_element  bytes of an element of the cache, where it differs from q's; None takes it from the work
    resident    the tensors may still lie in the L2, as where a benchmark replays one set
    phase       `prefill` or `decode`; without it one query a sequence is decode
    raises      TorchperfError where the device has no fit, or lacks the dtype
    """
    kv_element = kv_element or dict(work.dims).get("kv_bits", 0) / 8 or None
    shape = shape_of(work, kv_element)
    peaks = Peaks.of(accelerator, work.dtype)
    if backward_pass or not phase:
        phase = "decode" if work.dim("q") == 1 and not backward_pass else "prefill"
    fit = fit_of(accelerator, phase, dtype_class(work.dtype, kv_element), kernel)
    alone = kernel == "default" or backward_pass
    floor = accelerator.kernel_floor.value
    if phase == "decode":
        c = Decode.of(fit)
        parts = decode(shape, replace(c, floor=floor) if alone else c, peaks, resident)
    else:
        p = Prefill.of(fit)
        if alone:
            plain = accelerator.fit("attention.contiguous")
            cta, e_m = plain["cta"] * p.cta, max(p.e_m, plain["e_m"])
            p = replace(p, floor=floor, cta=cta, e_m=e_m, qo_passes=2.0, kv_passes=1.0)
        if backward_pass:
            behind = accelerator.fit("attention.backward")
            parts = backward(shape, p, peaks, behind["efficiency"], behind["kernels"])
        else:
            parts = prefill(shape, p, peaks, resident)
    fits = (fit.name, *(("attention.contiguous",) if alone and phase == "prefill" else ()))
    if backward_pass:
        phase, fits = "backward", (*fits, "attention.backward")
    engine = accelerator.matmul_engine(work.dtype)
    records = (*fits, f"peak.{engine}.{SAME_RATE.get(work.dtype, work.dtype)}", "peak.vector.fp32", "num_units")
    return _price(parts, phase, (fit.source, accelerator.memory.bandwidth.source), fits, records)


def _price(
    parts: Parts, phase: str, sources: tuple[str, str], fits: tuple[str, ...], records: tuple[str, ...]
) -> Price:
    floor, compute, memory, resident = (float(part[0]) for part in parts[:4])
    given = {
        name: tuple((symbol, float(np.ravel(value)[0])) for symbol, value in row.items())
        for name, row in parts.given.items()
    }
    formula_compute, formula_memory = FORMULAS[phase]
    terms = (
        Term("floor", floor, "floor", sources[:1], (("floor", floor),), (*fits, "kernel_floor")),
        Term("compute", compute, formula_compute, sources[:1], given["compute"], records),
        Term("memory", memory, formula_memory, sources, given["memory"], (*fits, "memory.bandwidth")),
    )
    seconds = float(parts.seconds[0])
    if floor > seconds - floor:
        bound = "launch"
    elif compute > memory:
        bound = "compute"
    else:
        bound = "l2" if resident > 0.5 else "hbm"
    return Price(seconds, bound, terms)
