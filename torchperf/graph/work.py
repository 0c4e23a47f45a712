"""What one op has to do: a function of its dims, the same before and after a split."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Work:
    """FLOPs, bytes and engine of one op.

    kind             operator family, e.g. matmul | attention | norm | pointwise | view (annotate.KINDS)
    engine           matrix | vector | none: whose peak applies
    dtype            element type whose peak applies
    flops            multiply-adds count two; attention counts the pairs that the mask leaves (the causal triangle)
    flops_noncausal  the same with every query seeing every key
    flops_executed   what the kernel runs: flash attention's backward repeats Q K^T, which `flops` leaves out
    bytes_read       each distinct element of each input once; a lower bound on traffic
    bytes_written    each element of each output once
    dims             named dims, e.g. (("m", 4096), ("n", 4096), ("k", 14336))
    equation         "bmk,bkn->bmn" for contractions, else ""
    known            False where no rule covers the op: bytes are counted, FLOPs are not known
    """

    kind: str
    engine: str
    dtype: str
    flops: int = 0
    flops_noncausal: int = 0
    flops_executed: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    dims: tuple[tuple[str, int], ...] = ()
    equation: str = ""
    known: bool = True

    @property
    def nbytes(self) -> int:
        """Bytes moved, read and written."""
        return self.bytes_read + self.bytes_written

    def dim(self, name: str) -> int:
        """A named dim; KeyError where the family has no such dim."""
        return dict(self.dims)[name]


Works = tuple[tuple[Work, ...], ...]  # of every stored op, block by block
