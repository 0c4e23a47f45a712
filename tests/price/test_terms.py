"""The formula of every term, with the numbers that stand beside it, gives the seconds of the term."""

from __future__ import annotations

import math
import re

import pytest

from torchperf import hardware
from torchperf.graph.price import Price, Term
from torchperf.graph.system import Accelerator
from torchperf.graph.work import Work
from torchperf.kernels import attention_price, matmul_price
from torchperf.price import memory_bound
from torchperf.price.collective import collective
from torchperf.price.pricer import later, times


def value(term: Term) -> float:
    """The formula worked out: symbols side by side are multiplied, `^` raises, what follows a colon is a remark."""
    text = term.formula.partition(":")[0].replace("sqrt(", "sqrt`(")
    text = re.sub(r"(?<=[\w)]) +(?=[\w(])", " * ", text).replace("^", "**").replace("`", "")
    return float(eval(text, {"__builtins__": {}, "sqrt": math.sqrt}, dict(term.inputs)))


def check(price: Price) -> None:
    assert price.terms
    checked = [term for term in price.terms if term.name not in ("overlap", "join")]
    assert checked
    for term in checked:
        assert value(term) == pytest.approx(term.seconds, rel=1e-9, abs=1e-15), term


@pytest.fixture(scope="module", params=["h100-sxm-80gb", "a100-sxm-80gb", "l40s"])
def device(request: pytest.FixtureRequest) -> Accelerator:
    return hardware.load_accelerator(request.param)


@pytest.mark.parametrize("sustained", [False, True])
@pytest.mark.parametrize("sizes", [(1, 4096, 4096), (8, 28672, 4096), (8192, 14336, 4096), (300, 77, 20000)])
def test_a_product(device: Accelerator, sizes: tuple[int, int, int], sustained: bool) -> None:
    price = matmul_price(device, *sizes, sustained=sustained)
    check(price)
    assert sum(term.seconds for term in price.terms) == pytest.approx(price.seconds)


@pytest.mark.parametrize("dtype", ["fp8", "int8_wo", "fp32", "tf32"])
def test_a_product_of_other_types(dtype: str) -> None:
    check(matmul_price(hardware.load_accelerator("h100-sxm-80gb"), 512, 4096, 4096, dtype=dtype, quantise=True))


@pytest.mark.parametrize(
    ("q", "kv", "backward"), [(4096, 4096, False), (1, 5000, False), (1, 64, False), (2048, 2048, True)]
)
@pytest.mark.parametrize("library", ["default", "vllm"])
def test_attention(device: Accelerator, q: int, kv: int, backward: bool, library: str) -> None:
    price = attention_price(
        device, q, kv, batch=3, heads=32, kv_heads=8, head_dim=128, v_head_dim=128, backward=backward, library=library
    )
    check(price)
    floor, compute, memory = (term.seconds for term in price.terms)
    assert floor + math.hypot(compute, memory) == pytest.approx(price.seconds)


@pytest.mark.parametrize("kind", ["pointwise", "norm", "gather", "quantise"])
def test_what_moves_bytes(device: Accelerator, kind: str) -> None:
    check(memory_bound.price(Work(kind, "vector", "fp32", 10**7, 10**7, 10**7, 10**8, 10**8), device))
    check(memory_bound.price(Work(kind, "vector", "fp32", 0, 0, 0, 10**5, 10**4), device, resident=True))


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "p2p"])
@pytest.mark.parametrize("ranks", [2, 8, 64])
@pytest.mark.parametrize("nbytes", [1e3, 1e6, 1e9])
def test_a_collective(kind: str, ranks: int, nbytes: float) -> None:
    if kind == "p2p" and ranks > 2:
        pytest.skip("a message has two ends")
    for system in ("dgx-h100", "dgx-a100-80gb", "l40s-8gpu", "tpu-v5p-pod"):
        price = collective(kind, nbytes, ranks, hardware.load_system(system))
        check(price)
        assert sum(term.seconds for term in price.terms) == pytest.approx(price.seconds)


@pytest.mark.parametrize("library", ["vllm_graph", "vllm_eager", "trtllm"])
def test_an_all_reduce_of_a_library(library: str) -> None:
    for nbytes in (1e4, 1e6, 1e8):
        check(collective("all_reduce", nbytes, 8, hardware.load_system("dgx-h100"), library=library))


def test_a_factor_stands_in_the_formula() -> None:
    price = matmul_price(hardware.load_accelerator("h100-sxm-80gb"), 512, 4096, 4096)
    check(times(times(price, 1.37, "slowdown"), 2.0, "load"))


def test_a_later_collective() -> None:
    price = collective("all_reduce", 1e5, 8, hardware.load_system("dgx-h100"))
    check(later(price, 1.5))


def test_records_name_what_the_device_has(device: Accelerator) -> None:
    """Each record is a fit of the device, or a value that its file has."""
    from torchperf.report.record import groups

    known = {fit.name for fit in device.fits}
    known |= {key for group, _, rows in groups(device) for key, _ in rows if not group}
    prices = [
        matmul_price(device, 64, 4096, 4096),
        attention_price(device, 512, 512, batch=1, heads=8, kv_heads=8, head_dim=64, v_head_dim=64, backward=True),
        memory_bound.price(Work("norm", "vector", "fp32", 10**7, 10**7, 10**7, 10**8, 10**8), device),
    ]
    for price in prices:
        for term in price.terms:
            assert set(term.records) <= known, term
