"""Matrix products: hierarchical roofline with a search over tiles and split k (the formula stands in tiles.py).

One set of constants for each (accelerator, class of types); GEMV, skinny, batched and grouped products are the same
formula. Where activations are quantised on the way, a kernel of its own comes before:

quantise  quantise + (passes 2 + x) batch m k / (e_memory bandwidth)     `passes` readings of 16-bit activations

error     medians of 4 to 9 % on rows held out of the fit; each fit carries its own
source    [williams2009] roofline; constants fitted to the rows that each fit names
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from ..graph.dtype import bits
from ..graph.errors import TorchperfError
from ..graph.price import Price, Term
from ..graph.system import SAME_RATE, Accelerator, Fit
from ..graph.work import Work
from .tiles import SPLITS, Array, Chosen, Conditions, Constants, Products, Rates, candidates, cheapest


@dataclass(frozen=True, slots=True)
class Format:
    """One class of types: bytes of an element of x, w and y (scales counted in), the peak, readings to quantise x."""

    x: float
    w: float
    y: float
    engine: str
    peak: str
    passes: int = 0


FORMATS = {
    "16bit": Format(2, 2, 2, "matrix", "bf16"),
    "fp8": Format(1, 1, 2, "matrix", "fp8", 2),  # one scale for the tensor: found, then applied
    "fp8_block": Format(1 + 4 / 128, 1, 2, "matrix", "fp8", 1),
    "mxfp8": Format(1 + 1 / 32, 1 + 1 / 32, 2, "matrix", "fp8", 1),
    "nvfp4": Format(0.5 + 1 / 16, 0.5 + 1 / 16, 2, "matrix", "fp4", 1),
    "sq": Format(1, 1, 2, "matrix", "int8", 1),
    "int8_wo": Format(2, 1, 2, "matrix", "fp16"),
    "int4_wo": Format(2, 0.5 + 2 / 128, 2, "matrix", "fp16"),
    "fp32": Format(4, 4, 4, "vector", "fp32"),
    "tf32": Format(4, 4, 4, "matrix", "tf32"),
}
CLASSES = {
    "bf16": "16bit", "fp16": "16bit", "fp8": "fp8", "fp8_block": "fp8_block", "mxfp8": "mxfp8", "int8": "sq",
    "fp4": "nvfp4", "fp32": "fp32", "tf32": "tf32",
}  # fmt: skip
WEIGHT_ONLY = ("int8_wo", "int4_wo")
# whose constants stand in, before 16bit
LIKE = {"fp8_block": ("fp8",), "mxfp8": ("fp8",), "nvfp4": ("fp8",), "int4_wo": ("int8_wo",)}


def constants_of(fit: Fit) -> tuple[Constants, float]:
    """The constants of the tile search, and seconds that quantising takes at least (0 where it is not in the fit)."""
    found = dict(fit.parameters)
    return Constants(*(fit[field.name] for field in fields(Constants))), found.get("quantise", 0.0)


def fit_of(accelerator: Accelerator, dtypes: str) -> Fit:
    """`matmul.<class>`; failing that the nearest class's, `matmul.16bit` or `matmul.fp32` at last."""
    for name in (dtypes, *LIKE.get(dtypes, ()), "16bit", "fp32"):
        found = accelerator.find_fit(f"matmul.{name}")
        if found:
            return found if name == dtypes else replace(found, basis="assumed")
    return accelerator.fit(f"matmul.{dtypes}")


def in_engine(c: Constants, whole: Constants) -> Constants:
    """Constants of a weight-only product in an engine; `whole` are those of 16 bits on the same device.

    The measured rows replay one product behind a launch of its own: their floor of 8 to 9 us and their split of k
    belong to that clock. Kernels launched back to back pay what the device's 16-bit kernels pay, at most.
    """
    return replace(
        c,
        floor=min(c.floor, whole.floor),
        cta=min(c.cta, whole.cta),
        k_step=min(c.k_step, whole.k_step),
        split=min(c.split, whole.split),
        ramp=min(c.ramp, whole.ramp),
        e_memory=max(c.e_memory, whole.e_memory),
        l2_ratio=max(c.l2_ratio, whole.l2_ratio),
        write=min(c.write, whole.write),
    )


def peak_of(accelerator: Accelerator, dtypes: str) -> tuple[str, float]:
    """Key and FLOP/s of the peak that a class of types has; a class whose type the device lacks is a TorchperfError.

    16-bit and weight-only products run at the better of bf16 and fp16, on the vector engine where no other has them.
    """
    form = FORMATS[dtypes]
    names = ("bf16", "fp16") if form.peak in ("bf16", "fp16") else (form.peak,)
    engines = (form.engine, "vector") if form.peak != "tf32" else (form.engine,)
    for engine in engines:
        has = [(accelerator.peak_flops_per_s(engine, n), n) for n in names if n in accelerator.dtypes(engine)]
        if has:
            best = max(rate for rate, _ in has)
            return f"peak.{engine}.{next(name for rate, name in has if rate == best)}", best
    accelerator.peak(form.engine, form.peak)
    raise AssertionError("peak() has raised")


def rates_of(accelerator: Accelerator, dtypes: str) -> Rates:
    """Peak, bandwidth, units and L2; raises as `peak_of`."""
    memory = accelerator.memory
    _, peak = peak_of(accelerator, dtypes)
    return Rates(peak, memory.bandwidth.value, accelerator.num_units.value, memory.l2.value)


def products(dtypes: str, sizes: Sequence[Array], groups: Array | None = None, imbalance: float = 1.0) -> Products:
    """Columns batch, m, n, k of products of one class. Rows in `groups` (mixture of experts) are spread evenly.

    imbalance  rows of the most loaded device over the mean
    """
    form = FORMATS[dtypes]
    batch, m, n, k = (np.asarray(column, dtype=float) for column in sizes)
    if groups is not None:
        rows = np.maximum(m * imbalance, 1.0)
        met = np.minimum(groups, rows)
        batch, m = batch * met, np.ceil(rows / met)
    return Products(batch, m, n, k, form.x, form.w, form.y)


def quantise_seconds(of: Products, dtypes: str, rates: Rates, c: Constants, floor: float) -> Array:
    """Seconds of the kernels that quantise the activations of `of`, 0 where the class has none."""
    form = FORMATS[dtypes]
    if not form.passes:
        return np.zeros(len(of))
    return floor + (form.passes * 2 + form.x) * of.batch * of.m * of.k / (c.e_memory * rates.bandwidth)


def seconds(
    accelerator: Accelerator, dtypes: str, of: Products, sustained: bool = False, quantise: bool = False
) -> Array:
    """Seconds of each of many products of one class on one device."""
    c, floor = constants_of(fit_of(accelerator, dtypes))
    rates = rates_of(accelerator, dtypes)
    total = cheapest(of, rates, c, Conditions.all(len(of), sustained))
    return total + quantise_seconds(of, dtypes, rates, c, floor) if quantise else total


class Pricer:
    """Prices products on one device; equal work is priced once.

    sustained  clocks of a long run (training), not of a burst
    quantise   16-bit activations are quantised within the op, at its cost
    imbalance  rows of the most loaded device over the mean, where rows go in groups
    dtypes     class of types, for one that the work's own type does not tell (`fp8_block`)
    resident   replayed on the same tensors, which may lie in the L2: a measurement, not a model
    """

    def __init__(
        self,
        accelerator: Accelerator,
        sustained: bool = False,
        quantise: bool = False,
        imbalance: float = 1.0,
        dtypes: str = "",
        resident: bool = False,
    ) -> None:
        self.accelerator, self.sustained, self.quantise = accelerator, sustained, quantise
        self.imbalance, self.dtypes, self.resident = imbalance, dtypes, resident
        self._known: dict[Work, Price] = {}

    def __call__(self, work: Work) -> Price:
        """Device time of one product. Raises TorchperfError where the device lacks the type."""
        known = self._known.get(work)
        if known is None:
            known = self._known[work] = self._price(work)
        return known

    def _price(self, work: Work) -> Price:
        dims = dict(work.dims)
        if not all(dims.values()):
            return Price(0.0, "none")
        dtypes, of = products_of(work, self.imbalance, self.dtypes)
        fit = fit_of(self.accelerator, dtypes)
        c, floor = constants_of(fit)
        if dtypes in WEIGHT_ONLY and not self.resident:
            c = in_engine(c, constants_of(fit_of(self.accelerator, "16bit"))[0])
        rates = rates_of(self.accelerator, dtypes)
        all_of = candidates(of, rates, c, Conditions.all(1, self.sustained, self.resident))
        extra = float(quantise_seconds(of, dtypes, rates, c, floor)[0]) if self.quantise else 0.0
        found = Chosen(all_of, int(np.argmin(all_of.seconds)), of, rates, c, self.sustained)
        records = (fit.name, peak_of(self.accelerator, dtypes)[0], "memory.bandwidth", "num_units")
        quantise = (("quantise", floor), ("passes", float(FORMATS[dtypes].passes)))
        return _price(found, extra, quantise, fit.source, records)


def price(
    work: Work,
    accelerator: Accelerator,
    sustained: bool = False,
    quantise: bool = False,
    imbalance: float = 1.0,
    dtypes: str = "",
    resident: bool = False,
) -> Price:
    """Device time of one product, alone; arguments as of `Pricer`, which is to be kept for many."""
    return Pricer(accelerator, sustained, quantise, imbalance, dtypes, resident)(work)


def _price(
    found: Chosen, extra: float, quantise: tuple[tuple[str, float], ...], source: str, records: tuple[str, ...]
) -> Price:
    """The terms of the cheapest candidate; `overlap` makes their sum the price."""
    all_of, best, c = found.all_of, found.best, found.c
    tile_m, tile_n = found.tile
    shape = f"{tile_m}x{tile_n}, k in {SPLITS[best % len(SPLITS)]}, {all_of.waves[0, best]:.0f} waves"
    named = {
        "floor": (c.floor, "floor"),
        "compute": (float(all_of.compute[0, best]), f"2 waves tile_m tile_n kslice u / (e_burst peak): {shape}"),
        "clock": (float(all_of.slow[0, best]), "(e_burst / e_sustained - 1) loop"),
        "l2": (float(all_of.l2[0, best]), "waves (x tile_m + w tile_n) kslice u / (l2_ratio bandwidth)"),
        "hbm": (float(all_of.hbm[0, best]), "batch (x m k + w k n + write y m n) / (e_memory bandwidth)"),
        "quantise": (extra, "quantise + (passes 2 + x) batch m k / (e_memory bandwidth)"),
    }
    total = float(all_of.seconds[0, best]) + extra
    levels = {
        "compute": named["compute"][0] + named["clock"][0],
        "l2": named["l2"][0],
        "hbm": named["hbm"][0],
    }
    bound = max(levels, key=lambda level: levels[level])
    if levels[bound] < total / 2:
        bound = "launch"
    rest = total - sum(value for value, _ in named.values())
    named["overlap"] = (rest, "what the levels share, less latency: cta and k_step of each wave, ramp, split of k")
    given = found.inputs
    given["quantise"] += quantise
    terms = tuple(
        Term(name, value, text, (source,), given.get(name, ()), records if name in given else records[:1])
        for name, (value, text) in named.items()
        if value
    )
    return Price(total, bound, terms)


def products_of(work: Work, imbalance: float = 1.0, dtypes: str = "") -> tuple[str, Products]:
    """The class of a work of kind `matmul` and its product (of one row).

    w in fewer bytes than x makes it weight-only, read off the bytes; a third operand (`addmm` with a full c) is read
    where y is written, so counted there.
    """
    dtype = work.dtype if work.dtype in CLASSES else SAME_RATE.get(work.dtype, work.dtype)
    if dtype not in CLASSES:
        raise TorchperfError(
            f"no price for a matrix product in `{work.dtype}`",
            hint=f"priced are {', '.join(f'`{name}`' for name in CLASSES)}",
        )
    dims = dict(work.dims)
    batch, m, n, k, groups = dims.get("batch", 1), dims["m"], dims["n"], dims["k"], dims.get("groups", 0)
    x_elements, w_elements, y_elements = batch * m * k, batch * n * k, batch * m * n
    told, dtypes = dtypes, dtypes or CLASSES[dtype]
    if not told and dtypes == "16bit" and work.bytes_read and (not groups or work.equation == "mk,gkn->mn"):
        packed = (work.bytes_read - 2 * x_elements) / (w_elements * (min(groups, m) if groups else 1))
        if 0.25 <= packed < 1.5:
            dtypes = "int8_wo" if packed >= 0.9 else "int4_wo"
    if groups:
        *sizes, met = _groups(work.equation, batch, m, n, k, groups)
        return dtypes, products(dtypes, [np.array([size]) for size in sizes], np.array([met]), imbalance)
    of = products(dtypes, [np.array([float(size)]) for size in (batch, m, n, k)])
    third = max(work.bytes_read - of.x_bytes * x_elements - of.w_bytes * w_elements, 0.0)
    y_bytes = (work.bytes_written + third) / y_elements if work.bytes_written else of.y_bytes
    element = bits(work.dtype) / 8
    y_bytes = min(max(y_bytes, min(element, 2.0)), 12.0)
    return dtypes, Products(of.batch, of.m, of.n, of.k, of.x_bytes, of.w_bytes, y_bytes)


def _groups(equation: str, batch: int, m: int, n: int, k: int, groups: int) -> list[float]:
    """Batch, m, n, k and groups such that m is what the groups share out."""
    if equation == "gmk,kn->mn":  # the columns lie in groups: the transposed product
        return [batch, n, m, k, groups]
    if equation == "mk,kn->gmn":  # k lies in groups: as many products, each over its own part
        return [groups, m, n, max(k / groups, 1.0), 1]
    if equation == "gmk,gkn->gmn":
        return [batch, m, n, k, 1]
    return [batch, m, n, k, groups]
