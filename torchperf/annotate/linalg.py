"""Factorizations and solves of small dense systems, as linear-attention models use them.

They run on the vector engine here, and so enter no MFU. Eigenvalues, QR and SVD have no rule.
"""

from __future__ import annotations

from torchperf.graph.op import Op
from torchperf.graph.work import Work

from .registry import aten, rule
from .traffic import shape, vector

# FLOPs over n^3, as numerator and denominator
FACTORS = {
    "linalg_inv_ex": (2, 1), "linalg_cholesky_ex": (1, 3), "cholesky": (1, 3), "linalg_lu_factor_ex": (2, 3),
    "_linalg_det": (2, 3), "_linalg_slogdet": (2, 3), "cholesky_inverse": (2, 3),
}  # fmt: skip


@rule(*aten(FACTORS))
def factorize(op: Op) -> Work:
    """A[..,n,n] -> its inverse, its factors or its determinant

    flops    2 n^3 (inverse), n^3 / 3 (Cholesky), 2/3 n^3 (LU)        read A        write the results
    source   leading terms as in Golub and Van Loan, Matrix Computations
    """
    a = op.inputs[0]
    numerator, denominator = FACTORS[op.name.split(".")[1]]
    return vector(op, "solve", numerator * a.numel * shape(a)[-1] // denominator)


@rule("aten.linalg_solve_triangular", "aten.triangular_solve")
def solve_triangular(op: Op) -> Work:
    """A[..,n,n] triangular, B[..,n,r] -> X with A X = B, by substitution

    flops    n |B|        read A (whole), B        write X
    """
    a = op.find("A") or op.operand("self")
    return vector(op, "solve", op.outputs[0].numel * shape(a)[-1])


@rule("aten.cholesky_solve", "aten._cholesky_solve_helper", "aten.linalg_lu_solve")
def solve_factored(op: Op) -> Work:
    """A given by its factors, B[..,n,r] -> X, by two substitutions

    flops    2 n |B|        read the factors, B        write X
    """
    factors = op.find("A") or op.find("LU") or op.operand("input2")
    return vector(op, "solve", 2 * op.outputs[0].numel * shape(factors)[-1])


@rule("aten._linalg_solve_ex")
def solve(op: Op) -> Work:
    """A[..,n,n], B[..,n,r] -> X with A X = B, by LU

    flops    2/3 n^3 + 2 n |B|        read A, B        write X and the factors
    """
    a, n = op.operand("A"), shape(op.operand("A"))[-1]
    return vector(op, "solve", 2 * a.numel * n // 3 + 2 * op.outputs[0].numel * n)
