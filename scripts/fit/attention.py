"""Constants of attention from measured rows: one set per (accelerator, phase, dtype class, kernel).

Sets follow each other (`ORDER`): an 8-bit cache starts from the 16-bit set of its kernel, a device from the one whose
chip it shares, the first of each kernel from `PREFILL` and `DECODE`; `simplex` pulls each towards its start. What is a
fact about a kernel (tile, sharing of a CTA, which groups it takes) is chosen among few by the rows, once per kernel
and device at 16 bit. Held-out errors: the whole chain is fitted on two thirds, by hash of (heads, kv_heads, head_dim).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from simplex import FOLDS, Array, Parameters, third
from simplex import fit as refine

from torchperf.graph.system import Accelerator
from torchperf.hardware import load_accelerator
from torchperf.price.attention import decode, prefill
from torchperf.price.attention_constants import Decode, Peaks, Prefill
from torchperf.validate.attention_rows import Case, case, shape

PREFILL = {"floor": 1e-5, "cta": 3e-6, "e_c": 0.7, "softmax": 20.0, "tail": 0.5, "e_m": 0.7}
GROUPED = {
    "floor": 6.5e-6,
    "combine": 5e-6,
    "cta": 3.5e-6,
    "head": 5e-8,
    "stream": 3.0,
    "e_m": 0.87,
    "fill": 0.8,
    "channel": 0.2,
    "l2_ratio": 2.0,
}
VECTOR = {"vector_cta": 1.5e-6, "vector_share": 0.1}
MOST = {"e_c": 1.0, "e_m": 0.95, "fill": 1.0}
LEAST = {"l2_ratio": 1.0, "kv_passes": 1.0}
# rows do not tell the L2's ratio in prefill: one for all; TensorRT-LLM's prefill first copies q, k and v
TILES = [{"tile": float(tile), "packed": float(packed), "l2_ratio": 3.0} for tile in (64, 128) for packed in (0, 1)]
PASSES = {"vllm": {"qo_passes": 2.0, "kv_passes": 3.0}, "trtllm": {"qo_passes": 4.0, "kv_passes": 3.0}}
ANY_GROUP = 1e6
WAYS: dict[str, list[Parameters]] = {
    # FlashAttention 2 splits only where query heads share a key head
    "vllm": [
        {"max_group": ANY_GROUP, "split_group": split, "vector_cta": 0.0, "vector_share": 0.0} for split in (1.0, 2.0)
    ],
    # where it has the grouped kernel at all (not on the newest), for groups up to 32
    "trtllm": [{"max_group": most, "split_group": 1.0} for most in (0.0, 32.0)],
}
SAME_CHIP = {"h200-sxm-141gb": "h100-sxm-80gb", "gb200": "b200-sxm-180gb"}
CACHE_PASSES = 25.0  # to start from: vLLM quantises an 8-bit cache as it writes it, slowly
CLASSES = ("16bit", "kv_fp8", "fp8")
ASSUMED = {"median_error": 0.0, "p90_error": 0.0, "source": "torchperf_assumption", "basis": "assumed"}
# what no row tells, from figures of arXiv 2407.08608 (H100, head dim 128, 16,384 tokens, no mask)
PUBLISHED = {
    "backward": {
        "parameters": {"efficiency": 0.87, "kernels": 3.0},
        "rows": "none: TFLOP/s backward over forward, 561 / 648 of FlashAttention-3, 322 / 370 of FlashAttention-2",
        "range": "training, head dims 64 to 256",
        **ASSUMED,
    },
    "contiguous": {
        "parameters": {"cta": 0.5, "e_m": 0.9},
        "rows": "none: what brings sequences of 512 and 1024 to FlashAttention-3's 467 and 565 TFLOP/s forward",
        "range": "tensors outside a paged cache",
        **ASSUMED,
    },
}
Sets = dict[tuple[str, str], Parameters]  # (accelerator, key) -> constants


@dataclass(frozen=True)
class Rows:
    """The rows of one set."""

    accelerator: Accelerator
    key: str
    cases: tuple[Case, ...]

    def seconds(self, constants: Mapping[str, float]) -> Array:
        """Our times under those constants."""
        peaks = Peaks.of(self.accelerator, self.cases[0].dtype)
        if self.key.startswith("prefill"):
            return prefill(shape(self.cases), Prefill(**constants), peaks, resident=True).seconds
        return decode(shape(self.cases), Decode(**constants), peaks, resident=True).seconds

    @property
    def measured(self) -> Array:
        """Measured times."""
        return np.array([row.seconds for row in self.cases])

    def refined(self, start: Parameters, fixed: Parameters) -> tuple[Parameters, float]:
        """All constants, those of `start` refined and those of `fixed` as they are, and the loss."""
        found, loss = refine(lambda c: self.seconds({**c, **fixed}), self.measured, start, MOST, LEAST)
        return {**found, **fixed}, loss

    def part(self, held_out: int, inside: bool) -> Rows:
        """The third `held_out`, or the others."""
        kept = [c for c in self.cases if (third(c.heads, c.kv_heads, c.head_dim) == held_out) == inside]
        return Rows(self.accelerator, self.key, tuple(kept))


def read(rows: Iterable[Mapping[str, str]]) -> tuple[Rows, ...]:
    """The rows of a file, by set, in the order in which the sets start from each other."""
    found: dict[tuple[str, str], list[Case]] = {}
    devices: dict[str, Accelerator] = {}
    for row in rows:
        one = case(row)
        if isinstance(one, Case):
            device = devices.setdefault(one.gpu, load_accelerator(one.gpu))
            found.setdefault((device.name, one.key), []).append(one)
    by_name = {device.name: device for device in devices.values()}
    order = sorted(found, key=lambda name: (name[0] in SAME_CHIP, CLASSES.index(name[1].split(".")[1]), name))
    return tuple(Rows(by_name[name], key, tuple(found[name, key])) for name, key in order)


def _starts(rows: Rows, sets: Sets) -> tuple[Parameters, list[Parameters]]:
    """Where the constants start, and the fixed ones to choose among."""
    phase, dtypes, kernel = rows.key.split(".")
    free = PREFILL if phase == "prefill" else {**GROUPED, **(VECTOR if kernel == "trtllm" else {})}
    if (phase, dtypes, kernel) == ("prefill", "kv_fp8", "vllm"):
        free = free | {"kv_passes": CACHE_PASSES}
    other = (rows.accelerator.name, f"{phase}.16bit.{kernel}")
    if dtypes == "16bit":
        other = (SAME_CHIP.get(rows.accelerator.name, ""), rows.key)
    if other in sets:
        known = sets[other]
        own = [{name: value for name, value in known.items() if name not in free}]
        # which groups its kernel takes may differ with an 8-bit cache
        ways = WAYS[kernel] if (phase, kernel) == ("decode", "trtllm") and dtypes != "16bit" else own
        start = {name: free[name] if name == "kv_passes" else known[name] for name in free}
        return start, ways
    fixed = [{**tile, **PASSES[kernel]} for tile in TILES] if phase == "prefill" else WAYS[kernel]
    return dict(free), fixed


def chain(sets_of_rows: Sequence[Rows]) -> Sets:
    """All sets, each from its start."""
    sets: Sets = {}
    for rows in sets_of_rows:
        if not rows.cases:
            continue
        start, choices = _starts(rows, sets)
        tried = [rows.refined(start, fixed) for fixed in choices]
        sets[rows.accelerator.name, rows.key] = min(tried, key=lambda one: one[1])[0]
    return sets


@lru_cache(maxsize=1)
def held_out(sets_of_rows: tuple[Rows, ...]) -> dict[tuple[str, str], list[tuple[Case, float]]]:
    """(row, error) of each row under constants fitted on the other two thirds."""
    errors: dict[tuple[str, str], list[tuple[Case, float]]] = {}
    for k in range(FOLDS):
        sets = chain([rows.part(k, inside=False) for rows in sets_of_rows])
        for rows in sets_of_rows:
            test = rows.part(k, inside=True)
            name = (rows.accelerator.name, rows.key)
            if test.cases and name in sets:
                error = test.seconds(sets[name]) / test.measured - 1
                errors.setdefault(name, []).extend(zip(test.cases, error.tolist(), strict=True))
    return errors


def _table(rows: Rows, constants: Parameters, errors: Array) -> dict[str, Any]:
    absolute = np.abs(errors)
    low, high = (tuple(pick(getattr(c, n) for c in rows.cases) for n in ("batch", "heads", "head_dim", "kv"))
                 for pick in (min, max))  # fmt: skip
    spans = zip(("batch", "heads", "head dim", "keys"), low, high, strict=True)
    return {
        "parameters": {name: float(f"{value:.4g}") for name, value in constants.items()},
        "rows": f"{len(rows.cases)} rows of aiconfigurator 095f58a5",
        "range": ", ".join(f"{name} {a} to {b}" for name, a, b in spans),
        "median_error": round(float(np.median(absolute)), 4),
        "p90_error": round(float(np.percentile(absolute, 90)), 4),
        "source": "aiconfigurator",
        "basis": "fitted",
    }


def fit(rows: Iterable[Mapping[str, str]]) -> dict[str, dict[str, dict[str, Any]]]:
    """{accelerator: {key: table of its fit}} from the rows of a file in the shared format."""
    sets_of_rows = read(rows)
    sets, errors = chain(sets_of_rows), held_out(sets_of_rows)
    tables: dict[str, dict[str, dict[str, Any]]] = {}
    for one in sets_of_rows:
        name = (one.accelerator.name, one.key)
        table = _table(one, sets[name], np.array([error for _, error in errors[name]]))
        tables.setdefault(one.accelerator.name, dict(PUBLISHED))[one.key] = table
    return tables


def report(rows: Iterable[Mapping[str, str]], tables: Mapping[str, Any]) -> list[str]:
    """Held-out errors of each device and phase, its kernels and dtype classes pooled: what the bars are meant for."""
    pooled: dict[str, list[float]] = {}
    for (name, key), errors in held_out(read(rows)).items():
        pooled.setdefault(f"{name} {key.split('.')[0]}", []).extend(abs(error) for _, error in errors)
    return [
        f"{name}: {len(errors)} rows, median {np.median(errors):.1%}, p90 {np.percentile(errors, 90):.1%}"
        for name, errors in sorted(pooled.items())
    ]
