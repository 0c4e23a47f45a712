"""Contractions: counts by hand, and against torch.utils.flop_counter on the ops that torch runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from torchperf.annotate import work
from torchperf.graph.op import Op
from torchperf.graph.work import Work

Make = Callable[..., Op]
Record = Callable[[Callable[[], Any]], list[Op]]


def meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def matrix_flops(ops: list[Op]) -> int:
    return sum(w.flops for w in map(work, ops) if w.engine == "matrix")


def test_mm(make: Make) -> None:
    found = work(make("aten.mm.default", {"self": (2, 3), "mat2": (3, 5)}, [(2, 5)]))
    assert found == Work(
        "matmul", "matrix", "bf16", 60, 60, 60, bytes_read=(6 + 15) * 2, bytes_written=20,
        dims=(("batch", 1), ("m", 2), ("n", 5), ("k", 3)), equation="mk,kn->mn",
    )  # fmt: skip


# name, operands, outputs, (batch, m, n, k), bytes read in bf16
PRODUCTS = [
    (
        "aten.addmm.default",
        {"self": (5,), "mat1": (2, 3), "mat2": (3, 5)},
        (2, 5),
        (1, 2, 5, 3),
        2 * (5 + 6 + 15),
    ),
    ("aten.bmm.default", {"self": (4, 2, 3), "mat2": (4, 3, 5)}, (4, 2, 5), (4, 2, 5, 3), 2 * (24 + 60)),
    (
        "aten.baddbmm.default",
        {"self": (4, 2, 5), "batch1": (4, 2, 3), "batch2": (4, 3, 5)},
        (4, 2, 5),
        (4, 2, 5, 3),
        2 * (40 + 24 + 60),
    ),
    (
        "aten.addbmm.default",
        {"self": (2, 5), "batch1": (4, 2, 3), "batch2": (4, 3, 5)},
        (2, 5),
        (4, 2, 5, 3),
        2 * (10 + 24 + 60),
    ),
    ("aten.linear.default", {"input": (7, 2, 3), "weight": (5, 3)}, (7, 2, 5), (1, 14, 5, 3), 2 * (42 + 15)),
    ("aten.matmul.default", {"self": (7, 2, 3), "other": (3, 5)}, (7, 2, 5), (1, 14, 5, 3), 2 * (42 + 15)),
    ("aten.matmul.default", {"self": (2, 3), "other": (7, 3, 5)}, (7, 2, 5), (7, 2, 5, 3), 2 * (6 + 105)),
    ("aten.matmul.default", {"self": (3,), "other": (7, 3, 5)}, (7, 5), (7, 1, 5, 3), 2 * (3 + 105)),
    ("aten.mv.default", {"self": (2, 3), "vec": (3,)}, (2,), (1, 2, 1, 3), 2 * 9),
    ("aten.addmv.default", {"self": (2,), "mat": (2, 3), "vec": (3,)}, (2,), (1, 2, 1, 3), 2 * 11),
    ("aten.dot.default", {"self": (3,), "tensor": (3,)}, (), (1, 1, 1, 3), 2 * 6),
    (
        "aten._scaled_mm.default",
        {"self": ("fp8", 2, 3), "mat2": ("fp8", 3, 5), "scale_a": ("fp32",), "scale_b": ("fp32",)},
        (2, 5),
        (1, 2, 5, 3),
        6 + 15 + 8,
    ),
    ("aten._int_mm.default", {"self": ("i8", 2, 3), "mat2": ("i8", 3, 5)}, ("i32", 2, 5), (1, 2, 5, 3), 21),
    (
        "aten._weight_int8pack_mm.default",
        {"self": (2, 3), "mat2": ("i8", 5, 3), "scales": (5,)},
        (2, 5),
        (1, 2, 5, 3),
        12 + 15 + 10,
    ),
]


@pytest.mark.parametrize(("name", "operands", "output", "sizes", "bytes_read"), PRODUCTS)
def test_products(
    name: str, operands: dict[str, Any], output: Any, sizes: tuple[int, ...], bytes_read: int, make: Make
) -> None:
    found = work(make(name, operands, [output]))
    batch, m, n, k = sizes
    assert tuple(found.dim(x) for x in ("batch", "m", "n", "k")) == sizes
    assert found.flops == found.flops_noncausal == found.flops_executed == 2 * batch * m * n * k
    assert (found.kind, found.engine, found.bytes_read) == ("matmul", "matrix", bytes_read)


def test_scaled_product_runs_at_the_peak_of_its_operands(make: Make) -> None:
    op = make("aten._scaled_mm.default", {"self": ("fp8", 2, 3), "mat2": ("fp8", 3, 5)}, [(2, 5)])
    assert work(op).dtype == "fp8"


@pytest.mark.parametrize(
    ("mask", "products"), [((True, True, True), 2), ((True, False, False), 1), ((False, True, True), 1)]
)
def test_linear_backward(mask: tuple[bool, ...], products: int, make: Make) -> None:
    operands = {"self": (7, 3), "grad_output": (7, 5), "weight": (5, 3)}
    op = make("aten.linear_backward.default", operands, [(7, 3), (5, 3), (5,)], output_mask=mask)
    assert work(op).flops == products * 2 * 7 * 3 * 5


# operands, flops, matrix or vector
EINSUMS = [
    ("bhqd,bhkd->bhqk", [(2, 3, 4, 5), (2, 3, 6, 5)], 2 * 2 * 3 * 4 * 6 * 5, "matrix"),
    ("...qd,...kd->...qk", [(2, 3, 4, 5), (2, 3, 6, 5)], 2 * 2 * 3 * 4 * 6 * 5, "matrix"),
    ("ij,jk", [(2, 3), (3, 4)], 2 * 2 * 3 * 4, "matrix"),
    ("ab,bc,cd->ad", [(2, 3), (3, 4), (4, 5)], 2 * (2 * 3 * 4 + 2 * 4 * 5), "matrix"),
    ("i,j->ij", [(2,), (3,)], 6, "vector"),
    ("ij->j", [(2, 3)], 6, "vector"),
]


@pytest.mark.parametrize(("equation", "shapes", "flops", "engine"), EINSUMS)
def test_einsum(equation: str, shapes: list[Any], flops: int, engine: str, make: Make) -> None:
    shape = tuple(torch.einsum(equation, *[torch.zeros(s) for s in shapes]).shape)
    found = work(make("aten.einsum.default", {"tensors": shapes}, [shape], equation=equation))
    assert (found.flops, found.engine) == (flops, engine)


def test_einsum_dims(make: Make) -> None:
    shapes = {"tensors": [(2, 3, 4, 5), (2, 3, 6, 5)]}
    op = make("aten.einsum.default", shapes, [(2, 3, 4, 6)], equation="bhqd,bhkd->bhqk")
    assert dict(work(op).dims) == {"batch": 6, "m": 4, "n": 6, "k": 5}


# rows 24 in 4 groups: forward and dX, its transpose, dW, and a plain bmm
GROUPED = [
    ({"self": (24, 8), "mat2": (4, 8, 16), "offs": ("i32", 4)}, (24, 16), 2 * 24 * 8 * 16),
    ({"self": (4, 16, 8), "mat2": (8, 24), "offs": ("i32", 4)}, (16, 24), 2 * 24 * 8 * 16),
    ({"self": (8, 24), "mat2": (24, 16), "offs": ("i32", 4)}, (4, 8, 16), 2 * 24 * 8 * 16),
    ({"self": (4, 6, 8), "mat2": (4, 8, 16)}, (4, 6, 16), 2 * 24 * 8 * 16),
]


@pytest.mark.parametrize(("operands", "output", "flops"), GROUPED)
def test_grouped_mm(operands: dict[str, Any], output: Any, flops: int, make: Make) -> None:
    op = make("aten._grouped_mm.default", operands, [output])
    found = work(op)
    assert found.flops == flops == 2 * found.dim("batch") * found.dim("m") * found.dim("n") * found.dim("k")
    assert found.dim("groups") == 4
    assert found.bytes_read == sum(v.nbytes for v in op.inputs)


def test_grouped_mm_reads_only_the_groups_that_have_rows(make: Make) -> None:
    """One token with two of 16 experts reads two matrices."""
    operands = {"self": (2, 8), "mat2": (16, 8, 4), "offs": ("i32", 16)}
    found = work(make("aten._grouped_mm.default", operands, [(2, 4)]))
    assert found.bytes_read == 2 * (2 * 8) + 2 * (2 * 8 * 4) + 4 * 16


@pytest.mark.parametrize(("suffix", "products"), [("", 1), ("_backward", 2)])
def test_grouped_mm_of_transformers(suffix: str, products: int, make: Make) -> None:
    operands: dict[str, Any] = {"input": (24, 8), "weight": (4, 8, 16), "offs": ("i32", 4)}
    if suffix:
        operands["grad_output"] = (24, 16)
    op = make(f"transformers.grouped_mm_fallback{suffix}.default", operands, [(24, 16)], dtype="fp32")
    assert work(op).flops == products * 2 * 24 * 8 * 16


def test_grouped_mm_as_torch_runs_it(record: Record) -> None:
    x, w = meta(64, 32).requires_grad_(), meta(4, 32, 16).requires_grad_()
    offsets = torch.empty(4, dtype=torch.int32, device="meta")

    def step() -> None:
        torch._grouped_mm(x, w, offs=offsets).backward(meta(64, 16))

    assert matrix_flops(record(step)) == 3 * 2 * 64 * 32 * 16


@pytest.mark.parametrize("frozen", [False, True])
def test_a_frozen_layer_has_no_weight_gradient(frozen: bool, record: Record) -> None:
    """O10: two nn.Linear(256, 256), batch 32, with input gradient."""
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(256, 256), nn.Linear(256, 256)).requires_grad_(not frozen)
    x = meta(32, 256, dtype=torch.float32).requires_grad_()
    ops = record(lambda: model(x).sum().backward())
    assert matrix_flops(ops) == (16_777_216 if frozen else 25_165_824)


def test_expanded_operand_is_read_once(record: Record) -> None:
    ops = record(lambda: torch.bmm(meta(4, 2, 3), meta(1, 3, 5).expand(4, 3, 5)))
    found = next(work(op) for op in ops if op.name == "aten.bmm.default")
    assert found.bytes_read == 2 * (4 * 2 * 3 + 3 * 5)


def test_the_same_operand_twice_is_read_once(record: Record) -> None:
    x = meta(4, 4)
    assert work(record(lambda: torch.mm(x, x))[-1]).bytes_read == 2 * 16


STEPS: list[Callable[[], Any]] = [
    lambda: torch.mm(meta(5, 7), meta(7, 3)),
    lambda: torch.addmm(meta(3), meta(5, 7), meta(7, 3)),
    lambda: torch.bmm(meta(2, 5, 7), meta(2, 7, 3)),
    lambda: torch.baddbmm(meta(2, 5, 3), meta(2, 5, 7), meta(2, 7, 3)),
    lambda: torch.matmul(meta(2, 1, 5, 7), meta(3, 7, 3)),
    lambda: torch.einsum("bqhd,bkhd->bhqk", meta(2, 5, 3, 4), meta(2, 6, 3, 4)),
    lambda: nn.functional.linear(meta(2, 5, 7).requires_grad_(), meta(3, 7).requires_grad_()).sum().backward(),
]


@pytest.mark.parametrize("step", STEPS)
def test_agrees_with_the_flop_counter(step: Callable[[], Any], record: Record) -> None:
    with FlopCounterMode(display=False) as counter:
        ops = record(step)
    assert matrix_flops(ops) == counter.get_total_flops() > 0
