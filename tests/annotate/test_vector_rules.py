"""Norms, softmax, losses, pointwise, dropout, reductions, scans: FLOPs and bytes by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from torchperf.annotate import work
from torchperf.graph.op import Op
from torchperf.graph.tensor import Value

Make = Callable[..., Op]
X = (4, 8)  # 32 elements, 64 bytes in bf16
ROW = ("fp32", 4)  # 16 bytes

# name, operands, outputs, attributes, (kind, flops, bytes read, bytes written)
CASES: list[tuple[str, dict[str, Any], list[Any], dict[str, Any], tuple[str, int, int, int]]] = [
    ("aten.native_layer_norm.default", {"input": X, "weight": (8,), "bias": (8,)}, [X, ROW, ROW],
     {"normalized_shape": (8,)}, ("norm", 8 * 32, 64 + 32, 64 + 32)),
    ("aten.native_layer_norm.default", {"input": X}, [X, ROW, ROW], {"normalized_shape": (8,)},
     ("norm", 6 * 32, 64, 96)),
    ("aten.native_layer_norm_backward.default",
     {"grad_out": X, "input": X, "mean": ROW, "rstd": ROW, "weight": (8,), "bias": (8,)}, [X, (8,), (8,)],
     {"normalized_shape": (8,), "output_mask": (True, True, True)},
     ("norm", 11 * 32, 128 + 32 + 32, 64 + 32)),
    ("aten._fused_rms_norm.default", {"input": X, "weight": (8,)}, [X, ROW], {"normalized_shape": (8,)},
     ("norm", 4 * 32, 80, 80)),
    ("aten._fused_rms_norm_backward.default", {"grad_out": X, "input": X, "rstd": ROW, "weight": (8,)},
     [X, (8,)], {"normalized_shape": (8,)}, ("norm", 8 * 32, 128 + 16 + 16, 80)),
    ("aten.native_group_norm.default", {"input": (2, 4, 4), "weight": (4,), "bias": (4,)},
     [(2, 4, 4), (2, 2), (2, 2)], {"N": 2, "C": 4, "HxW": 4, "group": 2}, ("norm", 8 * 32, 80, 64 + 16)),
    ("aten.native_batch_norm.default",
     {"input": (2, 4, 4), "weight": (4,), "bias": (4,), "running_mean": (4,), "running_var": (4,)},
     [(2, 4, 4), (4,), (4,)], {"training": True}, ("norm", 8 * 32, 64 + 4 * 8, 64 + 2 * 8 + 2 * 8)),
    ("aten.native_batch_norm.default",
     {"input": (2, 4, 4), "weight": (4,), "bias": (4,), "running_mean": (4,), "running_var": (4,)},
     [(2, 4, 4)], {"training": False}, ("norm", 4 * 32, 64 + 4 * 8, 64)),
    ("aten._softmax.default", {"self": X}, [X], {"dim": -1}, ("softmax", 5 * 32, 64, 64)),
    ("aten._softmax_backward_data.default", {"grad_output": X, "output": X}, [X], {"dim": 1},
     ("softmax", 4 * 32, 128, 64)),
    ("aten.logsumexp.default", {"self": X}, [(4,)], {"dim": (1,)}, ("softmax", 4 * 32, 64, 8)),
    ("aten.nll_loss_forward.default", {"self": X, "target": ("i64", 4)}, [(), ()], {},
     ("loss", 2 * 4, 4 * 2 + 4 * 8, 4)),
    ("aten.nll_loss_backward.default",
     {"grad_output": (), "self": X, "target": ("i64", 4), "total_weight": ()}, [X], {},
     ("loss", 4, 2 + 32 + 2, 64)),
    ("aten.mse_loss.default", {"self": X, "target": X}, [()], {}, ("loss", 3 * 32, 128, 2)),
    ("aten.add.Tensor", {"self": X, "other": (8,)}, [X], {}, ("pointwise", 32, 64 + 16, 64)),
    ("aten.gt.Scalar", {"self": X}, [("bool", 4, 8)], {}, ("pointwise", 32, 64, 32)),
    ("aten._to_copy.default", {"self": X}, [("fp32", 4, 8)], {}, ("pointwise", 32, 64, 128)),
    ("aten.gelu_backward.default", {"grad_output": X, "self": X}, [X], {}, ("pointwise", 320, 128, 64)),
    ("aten.mul_.Tensor", {"self": X, "other": ()}, [X], {}, ("pointwise", 32, 66, 64)),
    ("aten._foreach_add_.Scalar", {"self": [X, (8,)]}, [], {}, ("pointwise", 40, 80, 80)),
    ("aten.native_dropout.default", {"input": X}, [X, ("bool", 4, 8)], {"p": 0.1},
     ("dropout", 96, 64, 64 + 32)),
    ("aten.native_dropout_backward.default", {"grad_output": X, "mask": ("bool", 4, 8)}, [X], {},
     ("dropout", 64, 96, 64)),
    ("aten.bernoulli_.float", {"self": X}, [X], {"p": 0.5}, ("dropout", 32, 0, 64)),
    ("aten.rand_like.default", {"self": X}, [X], {}, ("create", 32, 0, 64)),
    ("aten.sum.dim_IntList", {"self": X}, [(4,)], {"dim": (1,)}, ("reduction", 32, 64, 8)),
    ("aten.var_mean.correction", {"self": X}, [(4,), (4,)], {}, ("reduction", 128, 64, 16)),
    ("aten.cumsum.default", {"self": X}, [X], {"dim": 0}, ("reduction", 32, 64, 64)),
    ("aten._foreach_norm.Scalar", {"self": [X, (8,)]}, [(), ()], {}, ("reduction", 80, 80, 4)),
    ("aten.cummax.default", {"self": X}, [X, ("i64", 4, 8)], {}, ("scan", 96, 64, 64 + 256)),
    ("aten._fft_c2c.default", {"self": ("c64", 4, 8)}, [("c64", 4, 8)], {"dim": (1,)},
     ("scan", 5 * 32 * 3, 256, 256)),
    ("torchperf.optimizer.adamw", {"self": ("fp32", 1)}, [],
     {"numel": 10, "read_bytes_per_parameter": 14, "write_bytes_per_parameter": 14,
      "flops_per_parameter": 15},
     ("optimizer", 150, 140, 140)),
    ("aten._fused_adamw_.default",
     {"self": [X], "grads": [X], "exp_avgs": [X], "exp_avg_sqs": [X], "state_steps": [("fp32",)]}, [], {},
     ("optimizer", 15 * 32, 4 * 64 + 4, 3 * 64)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "operands", "outputs", "attrs", "expected"), CASES)
def test_counts(
    name: str, operands: dict[str, Any], outputs: list[Any], attrs: dict[str, Any],
    expected: tuple[str, int, int, int], make: Make,
) -> None:  # fmt: skip
    found = work(make(name, operands, outputs, **attrs))
    assert (found.kind, found.flops, found.bytes_read, found.bytes_written) == expected
    assert found.engine == "vector"
    assert found.known


@pytest.mark.parametrize(
    ("name", "operands", "flops"),
    [
        ("aten.linalg_inv_ex.default", {"A": (2, 6, 6)}, 2 * 2 * 216),
        ("aten.linalg_cholesky_ex.default", {"self": (2, 6, 6)}, 2 * 72),
        ("aten.linalg_solve_triangular.default", {"self": (2, 6, 6), "B": (2, 6, 4)}, 2 * 6 * 6 * 4),
        ("aten._linalg_solve_ex.default", {"A": (2, 6, 6), "B": (2, 6, 4)}, 2 * 144 + 2 * 2 * 6 * 6 * 4),
    ],
)
def test_solves(name: str, operands: dict[str, Any], flops: int, make: Make) -> None:
    found = work(make(name, operands, [operands.get("B", (2, 6, 6))]))
    assert (found.kind, found.engine, found.flops) == ("solve", "vector", flops)


def test_rows_and_width(make: Make) -> None:
    norm = work(make("aten.native_layer_norm.default", {"input": (2, 4, 8)}, [(2, 4, 8)], normalized_shape=(8,)))
    assert norm.dims == (("rows", 8), ("width", 8))
    softmax = work(make("aten._softmax.default", {"self": (2, 4, 8)}, [(2, 4, 8)], dim=1))
    assert softmax.dims == (("rows", 16), ("width", 4))
    batch = work(make("aten.native_batch_norm.default", {"input": (2, 4, 8)}, [(2, 4, 8)], training=True))
    assert batch.dims == (("rows", 4), ("width", 16))


def test_an_expanded_operand_is_read_once(make: Make) -> None:
    """A mask of [1, 8] expanded to [4, 8]."""
    mask = Value(0, "bool", (4, 8), (0, 1))
    found = work(make("aten.where.self", {"condition": mask, "self": X, "other": ()}, [X]))
    assert found.bytes_read == 8 + 64 + 2


def test_a_comparison_runs_in_the_type_it_compares(make: Make) -> None:
    assert work(make("aten.gt.Scalar", {"self": X}, [("bool", 4, 8)])).dtype == "bf16"
    assert work(make("aten._to_copy.default", {"self": X}, [("fp32", 4, 8)])).dtype == "fp32"


def test_lstm_layer(make: Make) -> None:
    """5 steps of 2 sequences, 3 inputs, 4 states: every step multiplies [16,3] and [16,4]."""
    operands = {
        "input": (5, 2, 3),
        "weight0": (16, 3),
        "weight1": (16, 4),
        "weight2": (16,),
        "weight3": (16,),
    }
    found = work(make("aten.mkldnn_rnn_layer.default", operands, [(5, 2, 4)]))
    assert (found.flops, found.engine) == (2 * 10 * 16 * 7, "matrix")
    weights = [(16, 3), (16, 4), (16,), (16,)]
    found = work(make("aten._cudnn_rnn.default", {"input": (5, 2, 3), "weight": weights}, [(5, 2, 4)]))
    assert found.flops == 2 * 10 * 16 * 7
