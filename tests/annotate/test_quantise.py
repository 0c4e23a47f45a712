"""Work of casts to 8 and 4 bits: every byte by hand, scales included."""

from __future__ import annotations

import pytest

from torchperf.annotate import KINDS, work
from torchperf.graph.op import Op
from torchperf.graph.tensor import Value

M, K = 256, 512


def value(slot: int, dtype: str, *shape: int) -> Value:
    strides = [1]
    for dim in reversed(shape[1:]):
        strides.insert(0, strides[0] * dim)
    return Value(slot, dtype, shape, tuple(strides))


def cast(outputs: tuple[Value, ...], amax: bool = False, **attrs: object) -> Op:
    inputs = (value(0, "bf16", M, K), *((value(9, "fp32", 1),) if amax else ()))
    operands = ("self", "amax")[: len(inputs)]
    return Op("torchperf.quantise.default", "forward", "m", operands, inputs, outputs, tuple(attrs.items()))


def test_one_copy_with_a_known_scale_rides() -> None:
    """Read 2 bytes an element, write 1, and one fp32 scale."""
    op = cast((value(1, "fp8", M, K), value(2, "fp32", 1)), rows=True, transpose=False, amax=0, readings=1)
    w = work(op)
    assert (w.bytes_read, w.bytes_written) == (2 * M * K, M * K + 4)
    assert (w.kind, w.engine, w.flops) == ("pointwise", "vector", 3 * M * K)


def cast_after_amax(**attrs: object) -> Op:
    copies = (value(1, "fp8", M, K), value(2, "fp32", 1), value(3, "fp8", M, K), value(4, "fp32", 1))
    return Op(
        "torchperf.quantise.default", "forward", "m", ("self", "amax"),
        (value(0, "bf16", M, K), value(9, "fp32", 1)), copies, tuple(attrs.items()),
    )  # fmt: skip


def test_a_transposed_copy_is_a_kernel_of_its_own() -> None:
    """cast-transpose reads once and writes two copies."""
    w = work(cast_after_amax(rows=True, transpose=True, amax=1, readings=1))
    assert (w.bytes_read, w.bytes_written) == (2 * M * K + 4, 2 * M * K + 8)
    assert (w.kind, w.flops) == ("quantise", 6 * M * K)


@pytest.mark.parametrize(
    ("dtype", "scale", "block", "written"),
    [
        ("fp8_block", "fp32", 128, M * K + 4 * M * K // 128),
        ("mxfp8", "e8m0", 32, M * K + M * K // 32),
        ("fp4", "fp8", 16, M * K // 2 + M * K // 16),
    ],
)
def test_scales_of_blocks_are_written(dtype: str, scale: str, block: int, written: int) -> None:
    copies = (value(1, dtype, M, K), value(2, scale, M * K // block))
    w = work(cast(copies, rows=True, transpose=False, amax=0, readings=1, block=True))
    assert w.bytes_written == written
    assert w.flops == 5 * M * K  # the scale is found in the same kernel


def test_a_hadamard_transform_costs_four_additions_an_element() -> None:
    copies = (value(1, "fp4", M, K), value(2, "fp8", M * K // 16))
    plain, transformed = (
        work(cast(copies, rows=False, transpose=True, amax=0, readings=1, hadamard=given)) for given in (False, True)
    )
    assert transformed.flops - plain.flops == 4 * M * K


def test_readings_count() -> None:
    copies = (value(1, "fp8", M, K), value(2, "fp32", K))
    once, twice = (work(cast(copies, rows=False, transpose=True, amax=0, readings=n)) for n in (1, 2))
    assert twice.bytes_read == 2 * once.bytes_read == 4 * M * K


def test_amax_reads_all_and_writes_one_number() -> None:
    op = Op("torchperf.amax.default", "forward", "m", ("self",), (value(0, "bf16", M, K),), (value(1, "fp32", 1),))
    w = work(op)
    assert (w.bytes_read, w.bytes_written, w.flops, w.kind) == (2 * M * K, 4, 2 * M * K, "pointwise")


def test_the_kind_is_known() -> None:
    assert "quantise" in KINDS
