"""One kernel for several ops."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from torchperf.annotate import work
from torchperf.graph.op import Op
from torchperf.graph.tensor import Value

Make = Callable[..., Op]


def value(slot: int, *shape: int, dtype: str = "bf16") -> Value:
    strides = [1] * len(shape)
    for i in reversed(range(len(shape) - 1)):
        strides[i] = strides[i + 1] * shape[i + 1]
    return Value(slot, dtype, shape, tuple(strides))


@pytest.fixture
def fuse(make: Make) -> Callable[..., Op]:
    def build(inputs: list[Value], outputs: list[Value], parts: list[Op], **attrs: Any) -> Op:
        op = make("torchperf.fused.chain", {f"in{i}": v for i, v in enumerate(inputs)}, outputs, **attrs)
        return replace(op, parts=tuple(parts))

    return build


X, W, H, Y = value(0, 4, 8), value(1, 8, 8), value(2, 4, 8), value(3, 4, 8)


def test_what_lies_between_is_not_moved(fuse: Callable[..., Op], make: Make) -> None:
    parts = [
        make("aten.sigmoid.default", {"self": X}, [H]),
        make("aten.mul.Tensor", {"self": X, "other": H}, [Y]),
    ]
    found = work(fuse([X], [Y], parts))
    assert (found.flops, found.bytes_read, found.bytes_written) == (3 * 32 + 32, 64, 64)
    assert (found.kind, found.engine, found.known) == ("pointwise", "vector", True)


def test_an_epilogue_enters_no_mfu(fuse: Callable[..., Op], make: Make) -> None:
    parts = [
        make("aten.mm.default", {"self": X, "mat2": W}, [H]),
        make("aten.gelu.default", {"self": H}, [Y]),
    ]
    found = work(fuse([X, W], [Y], parts))
    assert (found.kind, found.engine, found.flops) == ("matmul", "matrix", 2 * 4 * 8 * 8)
    assert dict(found.dims) == {"batch": 1, "m": 4, "n": 8, "k": 8}
    assert found.nbytes == 64 + 128 + 64


def test_kind_may_be_given(fuse: Callable[..., Op], make: Make) -> None:
    assert work(fuse([X], [Y], [make("aten.neg.default", {"self": X}, [Y])], kind="norm")).kind == "norm"


def test_an_unknown_part_makes_the_whole_unknown(fuse: Callable[..., Op], make: Make) -> None:
    found = work(fuse([X], [Y], [make("mylib.mystery.default", {"x": X}, [Y])]))
    assert not found.known
    assert found.nbytes == 128


def test_of_a_table_only_the_rows_picked_are_read(fuse: Callable[..., Op], make: Make) -> None:
    table, indices = value(4, 1000, 8), value(5, 4, dtype="i64")
    parts = [
        make("aten.embedding.default", {"weight": table, "indices": indices}, [H]),
        make("aten.add.Tensor", {"self": H, "other": X}, [Y]),
    ]
    assert work(fuse([table, indices, X], [Y], parts)).bytes_read == 64 + 32 + 64


def test_attention_inside_keeps_its_three_counts(fuse: Callable[..., Op], make: Make) -> None:
    q = value(6, 1, 2, 8, 16)
    operands = {"grad_out": q, "query": q, "key": q, "value": q, "out": q}
    part = make("torchperf.attention_backward.default", operands, [q, q, q], is_causal=True)
    found, alone = work(fuse([q], [q], [part])), work(part)
    assert (found.flops, found.flops_noncausal, found.flops_executed) == (
        alone.flops, alone.flops_noncausal, alone.flops_executed,
    )  # fmt: skip
