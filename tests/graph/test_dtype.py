"""Element types and their sizes."""

from __future__ import annotations

import pytest

from torchperf.graph.dtype import BITS, FLOATING, bits, nbytes
from torchperf.graph.errors import TorchperfError


@pytest.mark.parametrize(
    ("dtype", "width"), [("fp32", 32), ("bf16", 16), ("fp8", 8), ("fp4", 4), ("i64", 64), ("bool", 8), ("c64", 64)]
)
def test_width(dtype: str, width: int) -> None:
    assert bits(dtype) == width


def test_every_floating_type_has_a_width() -> None:
    assert set(BITS) >= FLOATING


@pytest.mark.parametrize(("numel", "dtype", "size"), [(3, "bf16", 6), (4, "fp4", 2), (3, "fp4", 2), (0, "fp32", 0)])
def test_a_broken_last_byte_counts_whole(numel: int, dtype: str, size: int) -> None:
    assert nbytes(numel, dtype) == size


@pytest.mark.parametrize("dtype", ["", "float32", "BF16", "fp31"])
def test_an_unknown_type_is_an_error_that_lists_the_known(dtype: str) -> None:
    with pytest.raises(TorchperfError, match=f"unknown dtype `{dtype}`") as caught:
        nbytes(1, dtype)
    assert caught.value.hint is not None
    assert "bf16" in caught.value.hint
