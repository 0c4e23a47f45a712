"""Copies, gathers, scatters, sorts, pooling, creations and views: bytes by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from torchperf.annotate import work
from torchperf.graph.op import Op

Make = Callable[..., Op]
X = (4, 8)  # 64 bytes in bf16
I = ("i64", 3)  # noqa: E741  24 bytes

# name, operands, outputs, attributes, (kind, flops, bytes read, bytes written)
CASES: list[tuple[str, dict[str, Any], list[Any], dict[str, Any], tuple[str, int, int, int]]] = [
    ("aten.clone.default", {"self": X}, [X], {}, ("copy", 0, 64, 64)),
    ("aten.cat.default", {"tensors": [X, (2, 8)]}, [(6, 8)], {}, ("copy", 0, 96, 96)),
    ("aten.copy_.default", {"self": X, "src": ("fp32", 8)}, [X], {}, ("copy", 0, 32, 64)),
    ("aten.constant_pad_nd.default", {"self": X}, [(5, 8)], {}, ("copy", 0, 64, 80)),
    ("aten.slice_backward.default", {"grad_output": (1, 8)}, [X], {}, ("copy", 0, 16, 64)),
    ("aten.repeat.default", {"self": X}, [(8, 8)], {}, ("copy", 0, 64, 128)),
    ("aten.zero_.default", {"self": X}, [X], {}, ("create", 0, 0, 64)),
    ("aten.fill_.Scalar", {"self": X}, [X], {}, ("create", 0, 0, 64)),
    ("aten.arange.start", {}, [("i64", 8)], {}, ("create", 0, 0, 64)),
    ("aten.embedding.default", {"weight": (100, 8), "indices": I}, [(3, 8)], {}, ("gather", 0, 24 + 48, 48)),
    ("aten.embedding.default", {"weight": (2, 8), "indices": I}, [(3, 8)], {}, ("gather", 0, 24 + 32, 48)),
    ("aten.embedding_dense_backward.default", {"grad_output": (3, 8), "indices": I}, [(100, 8)], {},
     ("gather", 24, 48 + 24, 1600)),
    ("aten.index.Tensor", {"self": (100, 8), "indices": [I]}, [(3, 8)], {}, ("gather", 0, 72, 48)),
    ("aten.gather.default", {"self": (100, 8), "index": ("i64", 3, 2)}, [(3, 2)], {},
     ("gather", 0, 48 + 12, 12)),
    ("aten.scatter.src", {"self": X, "index": ("i64", 2, 2), "src": (2, 2)}, [X], {},
     ("gather", 0, 64 + 32 + 8, 64)),
    ("aten.scatter_.src", {"self": X, "index": ("i64", 2, 2), "src": (2, 2)}, [X], {},
     ("gather", 0, 32 + 8, 8)),
    ("aten.scatter_add_.default", {"self": X, "index": ("i64", 2, 2), "src": (2, 2)}, [X], {},
     ("gather", 4, 32 + 8 + 8, 8)),
    ("aten.index_put_.default", {"self": (100, 8), "indices": [I], "values": (3, 8)}, [(100, 8)], {},
     ("gather", 0, 24 + 48, 48)),
    ("aten.index_put_.default", {"self": (100, 8), "indices": [I], "values": (3, 8)}, [(100, 8)],
     {"accumulate": True}, ("gather", 24, 24 + 48 + 48, 48)),
    ("aten.index_put.default", {"self": X, "indices": [("bool", 4, 8)], "values": ()}, [X], {},
     ("gather", 0, 64 + 32 + 2, 64)),
    ("aten.index_add_.default", {"self": (100, 8), "index": I, "source": (3, 8)}, [(100, 8)], {},
     ("gather", 24, 24 + 48 + 48, 48)),
    ("aten.index_fill_.int_Scalar", {"self": (100, 8), "index": I}, [(100, 8)], {"dim": 0},
     ("gather", 0, 24, 48)),
    ("aten.sort.default", {"self": X}, [X, ("i64", 4, 8)], {"dim": -1}, ("sort", 32 * 3, 64, 64 + 256)),
    ("aten.topk.default", {"self": X}, [(4, 2), ("i64", 4, 2)], {"k": 2}, ("sort", 32, 64, 16 + 64)),
    ("aten.max_pool2d_with_indices.default", {"self": (1, 2, 4, 4)}, [(1, 2, 2, 2), ("i64", 1, 2, 2, 2)],
     {"kernel_size": (2, 2)}, ("pooling", 8 * 4, 64, 16 + 64)),
    ("aten.max_pool2d_with_indices_backward.default",
     {"grad_output": (1, 2, 2, 2), "self": (1, 2, 4, 4), "indices": ("i64", 1, 2, 2, 2)}, [(1, 2, 4, 4)],
     {"kernel_size": (2, 2)}, ("pooling", 8, 16 + 64, 64)),
    ("aten._adaptive_avg_pool2d.default", {"self": (1, 2, 4, 4)}, [(1, 2, 1, 1)], {}, ("pooling", 32, 64, 4)),
    ("aten.upsample_nearest2d.vec", {"input": (1, 2, 2, 2)}, [(1, 2, 4, 4)], {}, ("pooling", 0, 16, 64)),
    ("aten.upsample_bilinear2d.default", {"self": (1, 2, 2, 2)}, [(1, 2, 4, 4)], {},
     ("pooling", 8 * 32, 16, 64)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "operands", "outputs", "attrs", "expected"), CASES)
def test_counts(
    name: str, operands: dict[str, Any], outputs: list[Any], attrs: dict[str, Any],
    expected: tuple[str, int, int, int], make: Make,
) -> None:  # fmt: skip
    found = work(make(name, operands, outputs, **attrs))
    assert (found.kind, found.flops, found.bytes_read, found.bytes_written) == expected
    assert found.engine == ("vector" if found.flops else "none")
    assert found.known


VIEWS = """view _unsafe_view t transpose permute expand unsqueeze squeeze slice select split unbind detach
    alias as_strided unfold empty empty_like new_empty lift_fresh view_as_complex unsqueeze_ detach_"""


@pytest.mark.parametrize("name", VIEWS.split())
def test_views_cost_nothing(name: str, make: Make) -> None:
    found = work(make(f"aten.{name}.default", {"self": X}, [X]))
    assert (found.kind, found.engine, found.flops, found.nbytes) == ("view", "none", 0, 0)
