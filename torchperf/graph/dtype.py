"""Element types by their short names, and their sizes in bits."""

from __future__ import annotations

from .errors import TorchperfError

BITS: dict[str, int] = {
    "fp64": 64, "fp32": 32, "tf32": 32, "bf16": 16, "fp16": 16, "fp8": 8, "fp8_e5m2": 8, "e8m0": 8, "fp4": 4,
    "fp8_block": 8, "mxfp8": 8,  # fp8 whose scales belong to blocks of it: their bytes are values of their own
    "i64": 64, "i32": 32, "i16": 16, "i8": 8, "u8": 8, "u16": 16, "u32": 32, "u64": 64, "i4": 4, "bool": 8,
    "c32": 32, "c64": 64, "c128": 128,
}  # fmt: skip
FLOATING = frozenset({"fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "fp8_e5m2", "e8m0", "fp4", "fp8_block", "mxfp8"})


def bits(dtype: str) -> int:
    """Bits of one element of `dtype`; an unknown name is an error, never a default."""
    try:
        return BITS[dtype]
    except KeyError:
        raise TorchperfError(f"unknown dtype `{dtype}`", hint=f"known: {', '.join(BITS)}") from None


def nbytes(numel: int, dtype: str) -> int:
    """Bytes of `numel` elements of `dtype`, a broken last byte counted whole."""
    return -(-numel * bits(dtype) // 8)
