"""Attention: visible pairs against a slow twin, FLOPs by hand and against torch.utils.flop_counter."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

from torchperf.annotate import work
from torchperf.annotate.attention import keys_per_query, keys_touched, visible_pairs
from torchperf.graph.op import Op
from torchperf.graph.work import Work

Make = Callable[..., Op]
Record = Callable[[Callable[[], Any]], list[Op]]
aten = torch.ops.aten


def slow_visible(q: int, k: int, causal: bool, window: int | None, chunk: int | None) -> list[tuple[int, int]]:
    """The definition: query i stands at i + k - q."""
    seen = []
    for i, j in product(range(q), range(k)):
        p = i + k - q
        if causal and j > p:
            continue
        if window is not None and not (p - window < j and j < p + window):
            continue
        if chunk is not None and p // chunk != j // chunk:
            continue
        seen.append((i, j))
    return seen


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [None, 1, 3, 8, 50])
@pytest.mark.parametrize("chunk", [None, 1, 4, 7, 50])
def test_closed_forms(causal: bool, window: int | None, chunk: int | None) -> None:
    for q, k in product(range(1, 17), range(1, 17)):
        seen = slow_visible(q, k, causal, window, chunk)
        pairs = visible_pairs(q, k, causal, window, chunk)
        assert pairs == len(seen), (q, k)
        assert pairs <= q * keys_per_query(k, causal, window, chunk)
        if q <= k:
            assert k - keys_touched(q, k, window, chunk) == min(j for _, j in seen)


def test_closed_forms_do_not_loop() -> None:
    assert visible_pairs(10**9, 10**9, True) == 10**9 * (10**9 + 1) // 2
    assert visible_pairs(10**9, 10**9, True, 4096) == 4096 * 4097 // 2 + (10**9 - 4096) * 4096
    assert visible_pairs(1, 10**9, True, 4096) == 4096
    assert visible_pairs(10**9, 10**9, True, None, 8192) > 0


def attention(
    make: Make, q: Any = (2, 8, 64, 16), k: Any = (2, 2, 64, 16), v: Any = (2, 2, 64, 16), **attrs: Any
) -> Work:
    out = (*q[:3], v[3])
    operands = {"query": q, "key": k, "value": v}
    return work(make("torchperf.attention.default", operands, [out, ("fp32", *q[:3])], **attrs))


def test_own_op(make: Make) -> None:
    found = attention(make)
    assert found.flops == found.flops_noncausal == found.flops_executed == 2 * 2 * 8 * 64 * 64 * 32
    assert found.bytes_read == 2 * (2 * 8 * 64 * 16 + 2 * 2 * 2 * 64 * 16)
    assert found.bytes_written == 2 * 2 * 8 * 64 * 16 + 4 * 2 * 8 * 64
    assert (found.kind, found.engine, found.dtype) == ("attention", "matrix", "bf16")
    assert [found.dim(x) for x in ("batch", "heads", "kv_heads", "q", "kv", "head_dim", "v_head_dim")] == [
        2, 8, 2, 64, 64, 16, 16,
    ]  # fmt: skip


def test_causal_counts_the_triangle(make: Make) -> None:
    found = attention(make, is_causal=True)
    assert found.flops == 2 * 2 * 8 * (64 * 65 // 2) * 32
    assert found.flops_noncausal == 2 * 2 * 8 * 64 * 64 * 32
    assert found.dim("pairs") == 64 * 65 // 2


def test_decode_sees_the_whole_cache(make: Make) -> None:
    found = attention(make, q=(2, 8, 1, 16), is_causal=True)
    assert found.flops == found.flops_noncausal == 2 * 2 * 8 * 64 * 32


def test_window_bounds_flops_and_keys_read(make: Make) -> None:
    prefill = attention(make, is_causal=True, window=16)
    assert prefill.flops == 2 * 2 * 8 * (16 * 17 // 2 + 48 * 16) * 32
    assert prefill.flops_noncausal == 2 * 2 * 8 * 64 * 16 * 32
    decode = attention(make, q=(2, 8, 1, 16), is_causal=True, window=16)
    assert decode.flops == 2 * 2 * 8 * 16 * 32
    assert decode.bytes_read == 2 * (2 * 8 * 16 + 2 * 2 * 2 * 16 * 16)


def test_chunk(make: Make) -> None:
    found = attention(make, is_causal=True, chunk=16)
    assert found.flops == 2 * 2 * 8 * 4 * (16 * 17 // 2) * 32
    assert found.flops_noncausal == 2 * 2 * 8 * 64 * 16 * 32


def test_a_dense_bias_is_read_and_leaves_all_pairs(make: Make) -> None:
    operands = {"query": (2, 4, 8, 16), "key": (2, 4, 8, 16), "value": (2, 4, 8, 16), "bias": (1, 1, 8, 8)}
    found = work(make("torchperf.attention.default", operands, [(2, 4, 8, 16)]))
    assert found.flops == 2 * 2 * 4 * 64 * 32
    assert found.bytes_read == 2 * (3 * 1024 + 64)


def test_backward_with_another_value_dim(make: Make) -> None:
    """dV and dP over Dv = 128, dQ and dK over D = 192; the kernel repeats Q K^T over D."""
    shapes = {
        "query": (1, 4, 32, 192),
        "key": (1, 4, 32, 192),
        "value": (1, 4, 32, 128),
        "out": (1, 4, 32, 128),
    }
    grads = [(1, 4, 32, 192), (1, 4, 32, 192), (1, 4, 32, 128)]
    op = make("torchperf.attention_backward.default", {"grad_out": (1, 4, 32, 128), **shapes}, grads)
    found, pairs = work(op), 32 * 32
    assert found.flops == 2 * 4 * pairs * (2 * 192 + 2 * 128)
    assert found.flops_executed == 2 * 4 * pairs * (3 * 192 + 2 * 128)
    assert found.bytes_read == 2 * 4 * 32 * (192 + 192 + 128 + 128 + 128)


def test_backward_is_twice_and_executes_two_and_a_half_times_the_forward(make: Make) -> None:
    forward = attention(make, k=(2, 8, 64, 16), v=(2, 8, 64, 16), is_causal=True)
    q = (2, 8, 64, 16)
    operands = {"grad_out": q, "query": q, "key": q, "value": q, "out": q, "logsumexp": ("fp32", 2, 8, 64)}
    backward = work(make("torchperf.attention_backward.default", operands, [q, q, q], is_causal=True))
    assert backward.flops == 2 * forward.flops
    assert backward.flops_noncausal == 2 * forward.flops_noncausal
    assert 2 * backward.flops_executed == 5 * forward.flops


def meta(*shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.bfloat16, device="meta", requires_grad=True)


KERNELS: dict[str, Callable[..., torch.Tensor]] = {
    "flash": lambda q, k, v, causal: aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal)[0],
    "efficient": lambda q, k, v, causal: aten._scaled_dot_product_efficient_attention(q, k, v, None, True, 0.0, causal)[
        0
    ],
    "cpu": lambda q, k, v, causal: aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal)[0],
}


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("causal", [False, True])
def test_every_kernel_counts_alike(kernel: str, causal: bool, record: Record) -> None:
    q, k, v = meta(2, 4, 32, 16), meta(2, 4, 48, 16), meta(2, 4, 48, 16)
    ops = record(lambda: KERNELS[kernel](q, k, v, causal).sum().backward())
    forward, backward = (w for w in map(work, ops) if w.kind == "attention")
    pairs = sum(min(48, i + 17) for i in range(32)) if causal else 32 * 48
    assert forward.flops == 2 * 2 * 4 * pairs * 32
    assert forward.flops_noncausal == 2 * 2 * 4 * 32 * 48 * 32
    assert backward.flops == 2 * forward.flops
    assert 2 * backward.flops_executed == 5 * forward.flops
    assert forward.dim("pairs") == pairs


@pytest.mark.parametrize("kernel", ["flash", "efficient"])
def test_agrees_with_the_flop_counter(kernel: str, record: Record) -> None:
    """Its backward counts the repeated Q K^T."""
    with FlopCounterMode(display=False) as counter:
        ops = record(
            lambda: KERNELS[kernel](meta(2, 4, 32, 16), meta(2, 4, 48, 16), meta(2, 4, 48, 16), False).sum().backward()
        )
    assert sum(w.flops_executed for w in map(work, ops) if w.kind == "attention") == counter.get_total_flops()


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_cpu_attention_does_not_count_zero(device: str, record: Record) -> None:
    """O01: 12,582,912 forward and 37,748,736 in training, on any capture device."""
    q, k, v = (torch.empty(1, 12, 64, 64, device=device, requires_grad=True) for _ in range(3))
    ops = record(lambda: F.scaled_dot_product_attention(q, k, v).sum().backward())
    works = [work(op) for op in ops]
    assert sum(w.flops_noncausal for w in works if w.engine == "matrix") == 37_748_736
    with torch.no_grad():
        ops = record(lambda: F.scaled_dot_product_attention(q, k, v))
    assert sum(w.flops_noncausal for w in map(work, ops) if w.engine == "matrix") == 12_582_912


def test_grouped_queries(make: Make) -> None:
    """O01: 32 query heads on 8 key heads."""
    shapes = {"query": (1, 32, 128, 64), "key": (1, 8, 128, 64), "value": (1, 8, 128, 64)}
    name = "aten._scaled_dot_product_flash_attention_for_cpu"
    forward = work(make(f"{name}.default", shapes, [(1, 32, 128, 64)]))
    backward = work(make(f"{name}_backward.default", shapes, list(shapes.values())))
    assert forward.flops_noncausal == 134_217_728
    assert forward.flops_noncausal + backward.flops_noncausal == 402_653_184


def test_layouts_with_the_sequence_first(make: Make) -> None:
    """[B,S,H,D], packed [total,H,D] of three sequences, and a window to the left of 16 keys and oneself."""
    dense = {"query": (2, 64, 8, 16), "key": (2, 64, 2, 16), "value": (2, 64, 2, 16)}
    out = [(2, 64, 8, 16)]
    expected = 2 * 2 * 8 * (64 * 65 // 2) * 32
    assert work(make("aten._flash_attention_forward.default", dense, out, is_causal=True)).flops == expected
    assert work(make("aten._efficient_attention_forward.default", dense, out, custom_mask_type=1)).flops == expected
    packed = {name: (192, *shape[2:]) for name, shape in dense.items()} | {"cum_seq_q": ("i32", 4)}
    op = make("aten._flash_attention_forward.default", packed, [(192, 8, 16)], is_causal=True)
    assert work(op).flops == 3 * expected // 2
    op = make("aten._flash_attention_forward.default", dense, out, window_size_left=-1, window_size_right=0)
    assert work(op).flops == expected
    op = make("aten._flash_attention_backward.default", dense, out * 3, is_causal=True, window_size_left=16)
    assert work(op).flops == 2 * 2 * 2 * 8 * visible_pairs(64, 64, True, 17) * 32
