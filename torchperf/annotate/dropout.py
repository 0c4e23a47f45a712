"""Dropout, and ops that draw random numbers.

Drawing a number counts one FLOP: philox is integer work outside the peak of any engine.
"""

from __future__ import annotations

from torchperf.graph.op import Op
from torchperf.graph.work import Work

from .registry import aten, rule
from .traffic import moved, read, read_except, vector, written

# write only, whatever tensor they are named after
DRAWS = """
    rand rand_like randn randn_like randint randint_like randperm random random_ uniform uniform_
    normal_ exponential exponential_ log_normal log_normal_ cauchy cauchy_ geometric geometric_"""
# read the tensors of their parameters
SAMPLES = """
    bernoulli normal normal_functional poisson binomial _standard_gamma _standard_gamma_grad _sample_dirichlet
    _dirichlet_grad"""


@rule(*aten("native_dropout _fused_dropout dropout feature_dropout alpha_dropout"))
def dropout(op: Op) -> Work:
    """x mask / (1 - p) -> y, mask (one byte an element)

    flops    3 |x|: draw, compare, scale        read x        write y, mask
    """
    return vector(op, "dropout", 3 * op.inputs[0].numel)


@rule("aten.native_dropout_backward")
def dropout_backward(op: Op) -> Work:
    """dy mask / (1 - p) -> dx

    flops    2 |x|        read dy, mask        write dx
    """
    return vector(op, "dropout", 2 * op.operand("grad_output").numel)


@rule(*aten(SAMPLES))
def sample(op: Op) -> Work:
    """One number drawn per element, with its own parameters

    flops    |y|        read the parameters        write y
    """
    return vector(op, "dropout", op.outputs[0].numel)


@rule("aten.bernoulli.p", "aten.bernoulli_")
def bernoulli(op: Op) -> Work:
    """1 with probability p, else 0, in the shape of `self`

    flops    |y|        read p, where it is a tensor; never `self`        write y
    """
    return moved(op, "dropout", read_except(op, "self"), written(op), op.outputs[0].numel)


@rule(*aten(DRAWS))
def draw(op: Op) -> Work:
    """One number drawn per element

    flops    |y|        read nothing        write y
    """
    return moved(op, "create", 0, written(op), op.outputs[0].numel)


@rule("aten.multinomial")
def multinomial(op: Op) -> Work:
    """Indices drawn from rows of weights

    flops    2 |weights| for the cumulated sums        read the weights        write the indices
    """
    return moved(op, "dropout", read(op), written(op), 2 * op.operand("self").numel)
