"""The search behind a matrix product's price: every tile of the menu, every split of k, the cheapest wins.

One candidate cuts y[m,n] into tiles of `tile_m` x `tile_n` and k into `splits` slices, one CTA for each slice of
each tile; u = number of units (SMs), w = waves, i = max(1, m / tile_m), j = max(1, n / tile_n).

kslice    k / splits up to a whole step of 32, at least 128 where k is split at all
waves     ceil(batch * ceil(m / tile_m) * ceil(n / tile_n) * splits / u)
compute   2 tile_m tile_n kslice u / (e_burst peak)                of one CTA; padding is paid
l2        (x tile_m + w tile_n) kslice u / (l2_ratio bandwidth)    of one CTA: operands enter it through L2
loop      waves * (cta + fourth(compute, l2) + k_step kslice); at sustained clocks compute grows as below
hbm       (batch (x m k + w k n + write y m n)) * (1 + ramp u / CTAs in flight) / (e_memory bandwidth)
split     (4 + 4) splits batch m n / (l2_ratio bandwidth) + split, where splits > 1: fp32 partial sums through L2
seconds   floor + min over candidates of fourth(loop, hbm) + split,    fourth(a, b) = (a^4 + b^4)^(1/4)

At most 4 CTAs of a unit are in flight. Clocks fall under power: what the loop takes beyond `BURST` seconds, or all
of it where the device is busy for long (`sustained`), runs e_burst / e_sustained slower. A product replayed on the
same tensors (`resident`: a measurement, no model does it) finds of x and y the share
1 / (1 + (bytes / (keep L2))^4) in L2, and of w, which a replay turns over, that at four times the bytes.

Monotone by construction. Bandwidth grows with the CTAs in flight, so a plain formula would let a larger problem be
cheaper; but a smaller problem can always run on the larger one's grid. So hbm is taken over all grids padded within
w waves (w up to 4, loop then paying w), the two operands each at its best: the infimum over i' >= i of
a i' + b / i' is at sqrt(b / a), or at an end.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

# tile_m, tile_n: what CUTLASS, cuBLAS and their likes ship, from the widest to those for a few rows
TILES = (
    *((256, 128), (128, 256), (128, 128), (256, 64), (64, 256), (128, 64), (64, 128), (64, 64)),
    *((128, 32), (32, 128), (64, 32), (32, 64), (32, 32), (16, 32)),
)
SPLITS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
K_STEP = 32  # k is walked in steps of this
K_SLICE = 128  # no slice of a split k is shorter
IN_FLIGHT = 4  # CTAs that a unit keeps in flight
BURST = 300e-6  # seconds that a device holds its burst clock
W_TURN = 4  # how much sooner w leaves L2 between replays than x and y do
CHUNK = 64  # problems at a time: a chunk's arrays stay in cache

_TILE_M, _TILE_N, _SPLITS = (
    np.array(column, dtype=float)[None, :]
    for column in zip(*((m, n, s) for m, n in TILES for s in SPLITS), strict=True)
)


@dataclass(frozen=True, slots=True)
class Rates:
    """What the formula needs of a device: peak in FLOP/s, HBM bandwidth in B/s, number of units, bytes of L2."""

    peak: float
    bandwidth: float
    num_units: float
    l2: float


@dataclass(frozen=True, slots=True)
class Constants:
    """What is fitted, one set for an accelerator and a type.

    e_burst      share of the matrix peak at burst clocks          1
    e_sustained  the same at the clocks of a long run              1
    e_memory     share of the HBM bandwidth                        1
    floor        seconds of the shortest kernel                    s
    cta          prologue and epilogue of a CTA                    s
    k_step       latency of the loop for each element of k         s
    split        what a split k costs beside its traffic           s
    l2_ratio     L2 bandwidth over HBM bandwidth                   1
    ramp         share of the units in flight at which half the HBM bandwidth is reached   1
    write        cost of a written byte over that of a read byte   1
    keep         share of the L2 that keeps operands from one replay to the next           1
    """

    e_burst: float
    e_sustained: float
    e_memory: float
    floor: float
    cta: float
    k_step: float
    split: float
    l2_ratio: float
    ramp: float
    write: float
    keep: float


@dataclass(frozen=True, slots=True)
class Conditions:
    """How each product runs, 1 or 0: at the clocks of a long run; replayed on tensors that may lie in L2."""

    sustained: Array
    resident: Array

    @classmethod
    def all(cls, num: int, sustained: bool = False, resident: bool = False) -> Conditions:
        """The same for all of them."""
        return cls(np.full(num, float(sustained)), np.full(num, float(resident)))

    def __getitem__(self, rows: slice) -> Conditions:
        """Those of some products."""
        return Conditions(self.sustained[rows], self.resident[rows])


@dataclass(frozen=True, slots=True)
class Products:
    """Products x[batch,m,k] . w[batch,k,n] -> y[batch,m,n] as columns of floats; bytes of one element of each."""

    batch: Array
    m: Array
    n: Array
    k: Array
    x_bytes: float
    w_bytes: float
    y_bytes: float

    def __len__(self) -> int:
        """Number of products."""
        return len(self.m)

    def __getitem__(self, rows: slice) -> Products:
        """Some of them."""
        cut = (self.batch[rows], self.m[rows], self.n[rows], self.k[rows])
        return Products(*cut, self.x_bytes, self.w_bytes, self.y_bytes)


@dataclass(frozen=True, slots=True)
class Candidates:
    """Every candidate of every product, [products, candidates], seconds but for the last three."""

    seconds: Array
    compute: Array  # waves * compute
    l2: Array
    hbm: Array  # bytes at e_memory bandwidth, without ramp
    slow: Array  # what sustained clocks add
    waves: Array


def fourth(a: Array, b: Array) -> Array:
    """(a^4 + b^4)^(1/4): a maximum with a rounded corner."""
    a, b = a * a, b * b
    return np.sqrt(np.sqrt(a * a + b * b))


def _padded(rise: Array, fall: Array, at: Array, end: Array) -> Array:
    """The infimum of rise * i + fall / i over at <= i <= end, less rise * at."""
    best = np.minimum(np.maximum(np.sqrt(fall / rise), at), np.maximum(at, end))
    return rise * (best - at) + fall / best


def _kept(nbytes: Array, weights: Array, c: Constants, l2: float) -> Array:
    """The share of the bytes of a replayed product that L2 still has: of w a share as if L2 were a quarter."""
    filled = nbytes / (c.keep * l2)
    return (nbytes - weights) / nbytes / (1 + filled**4) + weights / nbytes / (1 + (filled * W_TURN) ** 4)


def candidates(products: Products, rates: Rates, c: Constants, conditions: Conditions) -> Candidates:
    """The formula of this module."""
    batch, m, n, k = (column[:, None] for column in (products.batch, products.m, products.n, products.k))
    x, w, y, units = products.x_bytes, products.w_bytes, c.write * products.y_bytes, rates.num_units
    kslice = np.ceil(k / _SPLITS / K_STEP) * K_STEP
    kslice = np.maximum(kslice, np.where(_SPLITS > 1, K_SLICE, 0))
    waves = np.ceil(batch * np.ceil(m / _TILE_M) * np.ceil(n / _TILE_N) * (_SPLITS / units))
    compute = kslice * (2 * _TILE_M * _TILE_N * units / (c.e_burst * rates.peak))
    l2 = kslice * ((x * _TILE_M + w * _TILE_N) * units / (c.l2_ratio * rates.bandwidth))
    wave = c.cta + fourth(compute, l2) + c.k_step * kslice

    in_hbm = batch * (x * m * k + w * k * n + y * m * n)
    kept = _kept(in_hbm, batch * w * k * n, c, rates.l2) * conditions.resident[:, None]
    in_hbm = in_hbm * (1 - kept * (1 - 1 / c.l2_ratio))
    free = BURST * (1 - conditions.sustained[:, None])
    rise_m, rise_n, corner = k * (x * _TILE_M), k * (w * _TILE_N), y * _TILE_M * _TILE_N
    pressure = c.ramp * units / _SPLITS
    i, j = np.maximum(m / _TILE_M, 1), np.maximum(n / _TILE_N, 1)
    slower = c.e_burst / c.e_sustained - 1
    best = np.full(waves.shape, np.inf)
    for within in range(1, IN_FLIGHT + 1):
        w_waves = np.maximum(waves, within)
        grid = w_waves * units / (_SPLITS * batch)
        lag = _padded(batch * rise_m, pressure * rise_n, i, grid / j)
        lag += _padded(batch * rise_n, pressure * rise_m, j, grid / i)
        lag = np.where(w_waves > IN_FLIGHT, in_hbm * (c.ramp / IN_FLIGHT), (1 - kept) * (lag + pressure * corner))
        loop = w_waves * wave
        loop = loop + slower * np.maximum(loop - free, 0)
        best = np.minimum(best, fourth(loop, (in_hbm + lag) / (c.e_memory * rates.bandwidth)))
    partial = np.where(_SPLITS > 1, (8 * _SPLITS) * (batch * m * n) / (c.l2_ratio * rates.bandwidth) + c.split, 0.0)
    hbm = np.broadcast_to(in_hbm / (c.e_memory * rates.bandwidth), waves.shape)
    slow = slower * np.maximum(waves * wave - free, 0)
    return Candidates(c.floor + best + partial, waves * compute, waves * l2, hbm, slow, waves)


def cheapest(products: Products, rates: Rates, c: Constants, conditions: Conditions) -> Array:
    """Seconds of each product by its cheapest candidate."""
    seconds = np.empty(len(products))
    for start in range(0, len(products), CHUNK):
        rows = slice(start, start + CHUNK)
        seconds[rows] = candidates(products[rows], rates, c, conditions[rows]).seconds.min(axis=1)
    return seconds


@dataclass(frozen=True, slots=True)
class Chosen:
    """The cheapest candidate of one product, and what its formula reads."""

    all_of: Candidates
    best: int
    of: Products
    rates: Rates
    c: Constants
    sustained: bool

    @property
    def tile(self) -> tuple[int, int]:
        return TILES[self.best // len(SPLITS)]

    @property
    def inputs(self) -> dict[str, tuple[tuple[str, float], ...]]:
        """The numbers in the formula of each term."""
        of, c, rates, waves = self.of, self.c, self.rates, float(self.all_of.waves[0, self.best])
        splits = SPLITS[self.best % len(SPLITS)]
        batch, m, n, k = (float(column[0]) for column in (of.batch, of.m, of.n, of.k))
        kslice = max(np.ceil(k / splits / K_STEP) * K_STEP, K_SLICE if splits > 1 else 0)
        grid = (("waves", waves), ("tile_m", float(self.tile[0])), ("tile_n", float(self.tile[1])),
                ("kslice", float(kslice)), ("u", rates.num_units))  # fmt: skip
        x, w = ("x", of.x_bytes), ("w", of.w_bytes)
        e_m = (("e_memory", c.e_memory), ("bandwidth", rates.bandwidth))
        one = [float(part[0, self.best]) / waves for part in (self.all_of.compute, self.all_of.l2)]
        wave = c.cta + float(fourth(*map(np.array, one))) + c.k_step * float(kslice)
        loop = max(waves * wave - (0.0 if self.sustained else BURST), 0.0)
        return {
            "floor": (("floor", c.floor),),
            "compute": (*grid, ("e_burst", c.e_burst), ("peak", rates.peak)),
            "clock": (("e_burst", c.e_burst), ("e_sustained", c.e_sustained), ("loop", loop)),
            "l2": (*grid, x, w, ("l2_ratio", c.l2_ratio), ("bandwidth", rates.bandwidth)),
            "hbm": (("batch", batch), ("m", m), ("n", n), ("k", k), x, w, ("y", of.y_bytes), ("write", c.write), *e_m),
            "quantise": (("batch", batch), ("m", m), ("k", k), x, *e_m),
        }
