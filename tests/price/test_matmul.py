"""Matrix products: a slow twin of the search, the laws, and what classes, groups and bytes do to a price."""

from dataclasses import fields, replace
from math import ceil, inf, sqrt

import numpy as np
import pytest

from torchperf.graph.errors import TorchperfError
from torchperf.graph.work import Work
from torchperf.hardware import load_accelerator
from torchperf.price.matmul import FORMATS, Pricer, price, products, products_of, seconds
from torchperf.price.tiles import (
    BURST,
    IN_FLIGHT,
    K_SLICE,
    K_STEP,
    SPLITS,
    TILES,
    Conditions,
    Constants,
    Products,
    Rates,
    cheapest,
)

A_H100 = Rates(989.4e12, 3.35e12, 132, 50e6)
CONSTANTS = Constants(0.97, 0.82, 0.95, 1.8e-6, 1e-6, 3e-10, 2.5e-6, 7.0, 0.45, 1.2, 0.01)
COSTLY_RAMP = replace(CONSTANTS, ramp=0.9, cta=0.6e-6, k_step=1e-9, write=1.8)


def columns(shapes, x=2.0, w=2.0, y=2.0):
    return Products(*np.array(shapes, dtype=float).T, x, w, y)


def random_shapes(num, seed=0):
    generator = np.random.default_rng(seed)
    dims = np.ceil(2 ** generator.uniform(0, 15, (num, 3)))
    return np.column_stack([np.ceil(2 ** generator.uniform(0, 5, num) * (generator.random(num) < 0.3) + 1e-9), dims])


def twin(shape, rates, c, sustained, x=2.0, w=2.0, y=2.0):
    """The formula of tiles.py in plain loops; no residence."""
    batch, m, n, k = shape
    y = c.write * y
    hbm_bytes = batch * (x * m * k + w * k * n + y * m * n)
    slower = c.e_burst / c.e_sustained - 1
    best = inf
    for tile_m, tile_n in TILES:
        for splits in SPLITS:
            kslice = ceil(k / splits / K_STEP) * K_STEP
            kslice = max(kslice, K_SLICE) if splits > 1 else kslice
            waves = ceil(batch * ceil(m / tile_m) * ceil(n / tile_n) * (splits / rates.num_units))
            compute = 2 * tile_m * tile_n * kslice * rates.num_units / (c.e_burst * rates.peak)
            l2 = (x * tile_m + w * tile_n) * kslice * rates.num_units / (c.l2_ratio * rates.bandwidth)
            wave = c.cta + (compute**4 + l2**4) ** 0.25 + c.k_step * kslice
            i, j = max(1, m / tile_m), max(1, n / tile_n)
            pressure = c.ramp * rates.num_units / splits
            for within in range(1, IN_FLIGHT + 1):
                paid = max(waves, within)
                loop = paid * wave
                loop += slower * max(loop - (0 if sustained else BURST), 0)
                lag = hbm_bytes * c.ramp / IN_FLIGHT
                if paid <= IN_FLIGHT:
                    grid = paid * rates.num_units / (splits * batch)
                    lag = pressure * y * tile_m * tile_n
                    own = ((x * tile_m, w * tile_n, i, grid / j), (w * tile_n, x * tile_m, j, grid / i))
                    for here, there, at, end in own:
                        rise, fall = batch * here * k, pressure * there * k
                        to = min(max(sqrt(fall / rise), at), max(at, end))
                        lag += rise * (to - at) + fall / to
                hbm = (hbm_bytes + lag) / (c.e_memory * rates.bandwidth)
                partial = 8 * splits * batch * m * n / (c.l2_ratio * rates.bandwidth) + c.split if splits > 1 else 0
                best = min(best, (loop**4 + hbm**4) ** 0.25 + partial)
    return c.floor + best


@pytest.mark.parametrize("constants", [CONSTANTS, COSTLY_RAMP], ids=["like-h100", "costly-ramp"])
@pytest.mark.parametrize("sustained", [False, True], ids=["burst", "sustained"])
def test_search_equals_its_slow_twin(constants, sustained):
    shapes = random_shapes(80)
    fast = cheapest(columns(shapes), A_H100, constants, Conditions.all(len(shapes), sustained))
    assert fast == pytest.approx([twin(shape, A_H100, constants, sustained) for shape in shapes], rel=1e-12)


@pytest.mark.parametrize("constants", [CONSTANTS, COSTLY_RAMP], ids=["like-h100", "costly-ramp"])
@pytest.mark.parametrize("dim", [0, 1, 2, 3], ids=["batch", "m", "n", "k"])
@pytest.mark.parametrize("step", [1, 16, 32, 64, 128, 256, 4096])
def test_price_never_falls_when_a_dim_grows(constants, dim, step):
    small = random_shapes(400, seed=step)
    large = small.copy()
    large[:, dim] += step
    conditions = Conditions.all(len(small))
    before = cheapest(columns(small), A_H100, constants, conditions)
    after = cheapest(columns(large), A_H100, constants, conditions)
    falls = after < before * (1 - 1e-12)
    assert not falls.any(), small[falls][:3]


@pytest.mark.parametrize("dim", [1, 2])
def test_price_never_falls_across_the_few_tiles_where_bandwidth_grows(dim):
    shapes = np.array([[1, 13, 48, 3744], [1, 1, 240, 4096], [1, 64, 64, 16384]])
    run = np.repeat(shapes, 600, axis=0).astype(float)
    run[:, dim] += np.tile(np.arange(600), 3)
    found = cheapest(columns(run), A_H100, COSTLY_RAMP, Conditions.all(len(run))).reshape(3, 600)
    assert (np.diff(found) >= -1e-18).all()


def test_price_is_never_below_the_roofline_of_a_level():
    shapes = random_shapes(500, seed=3)
    found = cheapest(columns(shapes), A_H100, CONSTANTS, Conditions.all(len(shapes)))
    batch, m, n, k = shapes.T
    assert (found >= 2 * batch * m * n * k / A_H100.peak).all()
    assert (found >= 2 * batch * (m * k + n * k + m * n) / A_H100.bandwidth).all()
    assert (found >= CONSTANTS.floor).all()


@pytest.mark.parametrize("rate", ["peak", "bandwidth"])
def test_price_falls_or_stays_when_a_rate_rises(rate):
    shapes = random_shapes(300, seed=4)
    conditions = Conditions.all(len(shapes))
    faster = replace(A_H100, **{rate: 1.3 * getattr(A_H100, rate)})
    before = cheapest(columns(shapes), A_H100, CONSTANTS, conditions)
    assert (cheapest(columns(shapes), faster, CONSTANTS, conditions) <= before * (1 + 1e-12)).all()


def test_long_runs_are_never_faster_than_bursts_and_replays_never_slower_than_cold_operands():
    shapes = random_shapes(300, seed=5)
    found = [
        cheapest(columns(shapes), A_H100, replace(CONSTANTS, keep=0.9), Conditions.all(len(shapes), *flags))
        for flags in ((True, False), (False, False), (False, True))
    ]
    assert (found[0] >= found[1]).all()
    assert (found[1] >= found[2] * (1 - 1e-12)).all()
    assert (found[1] > found[2]).any()


def work(m, n, k, dtype="bf16", batch=1, read=0, written=0, groups=0, equation="mk,kn->mn"):
    dims = (("batch", batch), ("m", m), ("n", n), ("k", k), *([("groups", groups)] if groups else []))
    flops = 2 * batch * m * n * k
    return Work("matmul", "matrix", dtype, flops, flops, flops, read, written, dims, equation)


@pytest.fixture(scope="module")
def h100():
    return load_accelerator("h100-sxm-80gb")


@pytest.mark.parametrize("shape", [(1, 4096, 4096), (4096, 14336, 4096), (129, 64, 16384), (1, 1, 1)])
def test_one_price_equals_the_vectorised_function_and_its_terms_sum_to_it(h100, shape):
    m, n, k = shape
    one = price(work(m, n, k), h100)
    of = products("16bit", [np.array([d]) for d in (1, m, n, k)])
    assert one.seconds == pytest.approx(seconds(h100, "16bit", of)[0], rel=1e-12)
    assert sum(term.seconds for term in one.terms) == pytest.approx(one.seconds)
    assert all(term.sources and term.formula for term in one.terms)


@pytest.mark.parametrize(
    ("shape", "bound"),
    [((8192, 8192, 8192), "compute"), ((8, 8192, 65536), "hbm"), ((16, 32, 64), "launch")],
)
def test_bound_names_the_level_that_decides(h100, shape, bound):
    assert price(work(*shape), h100).bound == bound


def test_equal_work_is_priced_once(h100):
    pricer = Pricer(h100)
    assert pricer(work(64, 64, 64)) is pricer(work(64, 64, 64))


def test_a_batch_multiplies_the_tiles(h100):
    batched, alone = price(work(128, 128, 512, batch=1024), h100).seconds, price(work(128, 128, 512), h100).seconds
    assert 2 * alone < batched < 1024 * alone


def test_groups_read_only_the_matrices_that_rows_meet(h100):
    def grouped(rows, imbalance=1.0):
        return price(work(rows, 4096, 4096, groups=64), h100, imbalance=imbalance).seconds

    assert grouped(4) < grouped(64) / 4
    assert grouped(64) < grouped(65536)
    assert grouped(65536) == pytest.approx(
        price(work(1024, 4096, 4096, batch=64, equation="bmk,bkn->bmn"), h100).seconds
    )
    assert grouped(65536, imbalance=1.5) > 1.3 * grouped(65536)


@pytest.mark.parametrize(
    ("equation", "columns_of"),
    [
        ("mk,gkn->mn", (8, 16, 96, 32)),
        ("gmk,kn->mn", (8, 12, 128, 32)),
        ("mk,kn->gmn", (8, 128, 96, 4)),
        ("gmk,gkn->gmn", (8, 128, 96, 32)),
    ],
)
def test_each_form_of_a_grouped_product_has_its_own_tiles(equation, columns_of):
    batch = 8 if equation == "gmk,gkn->gmn" else 1
    _, of = products_of(work(128, 96, 32, batch=batch, groups=8, equation=equation))
    assert tuple(int(column[0]) for column in (of.batch, of.m, of.n, of.k)) == columns_of


def test_weight_only_products_are_told_by_their_bytes(h100):
    m, n, k = 8, 8192, 8192
    full, int8, int4 = (work(m, n, k, read=int(2 * m * k + w * n * k), written=2 * m * n) for w in (2.0, 1.0, 0.5))
    assert [products_of(one)[0] for one in (full, int8, int4)] == ["16bit", "int8_wo", "int4_wo"]
    a100 = load_accelerator("a100-sxm-80gb")
    assert price(full, a100).seconds > price(int8, a100).seconds > price(int4, a100).seconds


def test_a_full_third_operand_is_read_where_the_result_is_written(h100):
    m = n = 8192
    plain = work(m, n, 128, read=2 * (m + n) * 128, written=2 * m * n)
    added = work(m, n, 128, read=2 * (m + n) * 128 + 2 * m * n, written=2 * m * n)
    assert price(added, h100).seconds > 1.2 * price(plain, h100).seconds


def test_quantising_activations_is_a_kernel_of_its_own(h100):
    one = work(4096, 4096, 4096, "fp8")
    inside = price(one, h100, quantise=True)
    assert inside.seconds > price(one, h100).seconds
    assert any(term.name == "quantise" for term in inside.terms)


def test_fp8_is_faster_than_bf16_and_fp32_slower(h100):
    of = {dtype: price(work(8192, 8192, 8192, dtype), h100).seconds for dtype in ("fp8", "bf16", "fp32")}
    assert of["fp8"] < of["bf16"] < of["fp32"]


def test_a_type_without_a_price_and_a_type_the_device_lacks_are_errors(h100):
    with pytest.raises(TorchperfError, match="no price for a matrix product in `i64`"):
        price(work(8, 8, 8, "i64"), h100)
    with pytest.raises(TorchperfError, match="has no `fp4` peak"):
        price(work(8, 8, 8, "fp4"), h100)


def test_an_empty_product_costs_nothing(h100):
    assert price(work(0, 8, 8), h100).seconds == 0


def test_every_stored_fit_has_every_constant_and_keeps_to_its_range():
    shares = ("e_burst", "e_sustained", "e_memory")
    for name in ("a100-sxm-80gb", "h100-sxm-80gb", "h200-sxm-141gb", "b200-sxm-180gb", "gb200", "l40s", "t4"):
        for fit in load_accelerator(name).fits:
            if fit.name.startswith("matmul."):
                assert fit.name.removeprefix("matmul.") in FORMATS
                assert all(fit[field.name] > 0 for field in fields(Constants)), (name, fit.name)
                assert all(fit[share] <= 1 for share in shares), (name, fit.name)
                assert fit["e_sustained"] <= fit["e_burst"], (name, fit.name)
                assert fit["write"] >= 1
                assert fit["l2_ratio"] >= 1
