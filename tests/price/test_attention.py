"""Attention prices: laws, slow twins, and the published speed of flash attention."""

from __future__ import annotations

from dataclasses import astuple, replace
from math import ceil, hypot, inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchperf.annotate.attention import visible_pairs
from torchperf.graph.errors import TorchperfError
from torchperf.graph.system import Accelerator
from torchperf.graph.work import Work
from torchperf.hardware import load_accelerator
from torchperf.price.attention import Shape, decode, fit_of, prefill, price
from torchperf.price.attention_constants import Decode, Peaks, Prefill

DEVICES = ("a100-sxm-80gb", "h100-sxm-80gb", "b200-sxm-180gb", "l40s")
KERNELS = ("default", "vllm", "trtllm")
LOADED = {name: load_accelerator(name) for name in DEVICES}


def op(
    batch: int = 1,
    heads: int = 32,
    kv_heads: int = 8,
    q: int = 1024,
    kv: int = 1024,
    dim: int = 128,
    v_dim: int = 0,
    causal: bool = True,
    window: int | None = None,
) -> Work:
    """A 16-bit attention op."""
    v_dim = v_dim or dim
    pairs = visible_pairs(q, kv, causal, window)
    flops = 2 * batch * heads * pairs * (dim + v_dim)
    dims = (
        ("batch", batch), ("heads", heads), ("kv_heads", kv_heads), ("q", q), ("kv", kv),
        ("head_dim", dim), ("v_head_dim", v_dim), ("pairs", pairs),
    )  # fmt: skip
    read = 2 * batch * (heads * q * dim + kv_heads * kv * (dim + v_dim))
    return Work("attention", "matrix", "bf16", flops, flops, flops, read, 2 * batch * heads * q * v_dim, dims)


shapes = st.fixed_dictionaries(
    {
        "batch": st.sampled_from((1, 2, 7, 64, 256)),
        "kv_heads": st.sampled_from((1, 2, 8)),
        "group": st.sampled_from((1, 2, 4, 16, 32, 64)),
        "q": st.sampled_from((1, 16, 128, 1000, 4096)),
        "more": st.sampled_from((0, 128, 5000)),
        "dim": st.sampled_from((64, 128, 192, 256, 512)),
    }
)
devices = st.sampled_from(DEVICES)
kernels = st.sampled_from(KERNELS)


def seconds(device: str, kernel: str, shape: dict[str, int], **more: int) -> float:
    s = {**shape, **more}
    work = op(s["batch"], s["kv_heads"] * s["group"], s["kv_heads"], s["q"], s["q"] + s["more"], s["dim"])
    return price(work, LOADED[device], kernel).seconds


@given(devices, kernels, shapes, st.sampled_from(("batch", "kv_heads", "more")))
def test_never_falls_with_sequences_heads_or_keys(device: str, kernel: str, shape: dict[str, int], name: str) -> None:
    step = 128 if name == "more" else shape[name]
    assert seconds(device, kernel, shape, **{name: shape[name] + step}) >= seconds(device, kernel, shape) * (1 - 1e-12)


@given(devices, kernels, shapes)
def test_never_falls_with_query_heads(device: str, kernel: str, shape: dict[str, int]) -> None:
    """From two query heads a key head on: some kernels split the keys only there, and the first step is faster."""
    group = max(shape["group"], 2)
    more = seconds(device, kernel, shape, group=2 * group)
    assert more >= seconds(device, kernel, shape, group=group) * (1 - 1e-12)


@given(devices, kernels, shapes)
def test_never_falls_with_queries(device: str, kernel: str, shape: dict[str, int]) -> None:
    q = max(shape["q"], 2)  # one query is another kernel
    assert seconds(device, kernel, shape, q=q + 128) >= seconds(device, kernel, shape, q=q) * (1 - 1e-12)


@given(devices, kernels, shapes)
def test_never_below_the_roofline(device: str, kernel: str, shape: dict[str, int]) -> None:
    s, chip = shape, LOADED[device]
    work = op(s["batch"], s["kv_heads"] * s["group"], s["kv_heads"], s["q"], s["q"] + s["more"], s["dim"])
    time = price(work, chip, kernel).seconds
    assert time >= work.flops / chip.peak_flops_per_s("matrix", "bf16")
    assert time >= work.nbytes / chip.memory.bandwidth.value


def arrays(shape: dict[str, int], q: int) -> Shape:
    s = shape
    kv = q + s["more"]
    pairs = visible_pairs(q, kv, True)
    sizes = (s["batch"], s["kv_heads"] * s["group"], s["kv_heads"], q, kv, s["dim"], s["dim"], pairs, 2, 2)
    return Shape(*(np.array([float(size)]) for size in sizes))


@given(devices, kernels, shapes, st.sampled_from(("matrix", "vector", "bandwidth")))
def test_falls_or_stays_when_a_peak_rises(device: str, kernel: str, shape: dict[str, int], name: str) -> None:
    chip = LOADED[device]
    peaks = Peaks.of(chip, "bf16")
    better = replace(peaks, **{name: 2 * getattr(peaks, name)})
    p = Prefill.of(fit_of(chip, "prefill", "16bit", kernel))
    d = Decode.of(fit_of(chip, "decode", "16bit", kernel))
    many, one = arrays(shape, max(shape["q"], 2)), arrays(shape, 1)
    assert prefill(many, p, better).seconds <= prefill(many, p, peaks).seconds
    assert decode(one, d, better).seconds <= decode(one, d, peaks).seconds


@pytest.mark.parametrize(("q", "skipped"), [(128, 0), (1024, 0), (256, 4096)])
@pytest.mark.parametrize("device", DEVICES)
def test_prefill_is_the_sum_over_its_blocks(device: str, q: int, skipped: int) -> None:
    """Slow twin: block after block of the causal triangle, each over the keys its rows see, half a block in vain."""
    chip = LOADED[device]
    c = replace(Prefill.of(fit_of(chip, "prefill", "16bit", "trtllm")), packed=0.0, tail=0.0)
    peaks = Peaks.of(chip, "bf16")
    batch, heads, dim, tile = 2, 8, 128, int(c.tile)
    pair = 4 * dim / (c.e_c * peaks.matrix) + c.softmax / peaks.vector
    total = 0.0
    for block in range(ceil(q / tile)):
        rows = range(block * tile, (block + 1) * tile)
        keys = sum(skipped + row + 1 for row in rows)
        total += batch * heads * (c.cta / peaks.units + (keys + tile * tile / 2) * pair)
    sizes = (batch, heads, heads, q, q + skipped, dim, dim, visible_pairs(q, q + skipped, True), 2, 2)
    ours = prefill(Shape(*(np.array([float(size)]) for size in sizes)), c, peaks).compute
    assert ours[0] == pytest.approx(total)


def slow_decode(shape: Shape, c: Decode, peaks: Peaks) -> float:
    """One op, way after way, in plain Python."""
    batch, heads, kv_heads, _, keys, dim, v_dim, _, element, kv_element = (float(x[0]) for x in astuple(shape))
    group, width = heads / kv_heads, dim + v_dim
    nbytes = batch * kv_heads * keys * width * kv_element + batch * heads * width * element
    memory = nbytes * (1 + c.channel * peaks.units / max(batch * kv_heads, peaks.units)) / (c.e_m * peaks.bandwidth)
    passes = ceil(max(dim, v_dim) / 256)
    per_key = max(
        width * kv_element * passes / (c.stream * peaks.bandwidth / peaks.units),
        2 * group * width / (peaks.matrix / peaks.units),
    )
    ways = [(batch * kv_heads, c.cta + c.head * group, per_key)] if group <= c.max_group else []
    if c.vector_share:
        ways.append((batch * heads, c.vector_cta, 2 * width / (c.vector_share * peaks.vector / peaks.units)))
    best = inf
    for ctas, cta, key in ways:
        rounds = max(1.0, ctas / peaks.units)
        best = min(best, c.floor + hypot(rounds * (cta + keys * key), memory))
        if group >= c.split_group:
            part = max(keys * ctas / (c.fill * peaks.units), min(keys, 128))
            best = min(best, c.floor + c.combine + hypot(rounds * cta + part * key, memory))
    return best


@given(devices, st.sampled_from(("vllm", "trtllm")), shapes)
def test_decode_is_the_fastest_of_its_ways(device: str, kernel: str, shape: dict[str, int]) -> None:
    chip = LOADED[device]
    c, peaks = Decode.of(fit_of(chip, "decode", "16bit", kernel)), Peaks.of(chip, "bf16")
    one = arrays(shape, 1)
    assert decode(one, c, peaks).seconds[0] == pytest.approx(slow_decode(one, c, peaks))


# sequence, TFLOP/s forward and backward: FlashAttention-3, H100 SXM, head dim 128, no mask, 16,384 tokens in all
# (arXiv 2407.08608, figures 5 and 6)
PUBLISHED = ((512, 467, 316), (1024, 565, 424), (2048, 625, 501), (4096, 638, 542), (8192, 646, 559), (16384, 648, 561))


@pytest.mark.parametrize(("seq", "forward", "behind"), PUBLISHED)
def test_published_speed_of_flash_attention_3(seq: int, forward: float, behind: float) -> None:
    work = op(batch=16384 // seq, heads=16, kv_heads=16, q=seq, kv=seq, causal=False)
    ours = work.flops / price(work, LOADED["h100-sxm-80gb"]).seconds / 1e12
    back = 2.5 * work.flops / price(work, LOADED["h100-sxm-80gb"], backward_pass=True).seconds / 1e12
    assert ours == pytest.approx(forward, rel=0.2), f"forward {ours:.0f}"
    assert back == pytest.approx(behind, rel=0.2), f"backward {back:.0f}"


@pytest.mark.parametrize("backward_pass", [False, True])
def test_causal_costs_half_and_a_window_less(backward_pass: bool) -> None:
    chip = LOADED["h100-sxm-80gb"]
    full, causal, window = (
        price(work, chip, backward_pass=backward_pass).seconds
        for work in (op(q=8192, kv=8192, causal=False), op(q=8192, kv=8192), op(q=8192, kv=8192, window=1024))
    )
    assert causal == pytest.approx(full / 2, rel=0.1)
    assert window < causal / 2


def test_latent_heads_are_priced() -> None:
    """Keys of 192 beside values of 128 cost what 320 elements do: less than two of 192, more than two of 128."""
    chip = LOADED["h100-sxm-80gb"]
    wide, mixed, narrow = (
        price(op(q=4096, kv=4096, dim=d, v_dim=v), chip).seconds for d, v in ((192, 0), (192, 128), (128, 0))
    )
    assert narrow < mixed < wide


def test_an_8_bit_cache_is_faster_where_bytes_decide() -> None:
    work = op(batch=64, q=1, kv=32768)
    chip = LOADED["h100-sxm-80gb"]
    assert price(work, chip, "vllm", kv_element=1).seconds < price(work, chip, "vllm").seconds


def test_terms_and_bound() -> None:
    chip = LOADED["h100-sxm-80gb"]
    assert price(op(q=8192, kv=8192), chip).bound == "compute"
    assert price(op(batch=256, q=1, kv=8192), chip).bound == "hbm"
    small = price(op(q=1, kv=1, heads=1, kv_heads=1), chip, "vllm")
    assert small.bound == "launch"
    floor, compute, memory = (term.seconds for term in small.terms)
    assert small.seconds == pytest.approx(floor + hypot(compute, memory))


def test_an_unknown_kernel_is_told() -> None:
    with pytest.raises(TorchperfError, match="no attention kernel `flex`"):
        price(op(), LOADED["h100-sxm-80gb"], "flex")


def test_a_device_without_fits_says_so() -> None:
    bare: Accelerator = replace(LOADED["h100-sxm-80gb"], fits=())
    with pytest.raises(TorchperfError, match=r"no fit `attention\.prefill\.16bit\.vllm`"):
        price(op(), bare)
