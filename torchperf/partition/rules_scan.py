"""Recurrences and windows along a sequence, and triangular solves: batch and channels split, the sequence does not."""

from __future__ import annotations

from .algebra import Dim
from .rules import rule
from .step import Step

# operand -> letters of its dims: b batch, d channels, l sequence, n states
_LETTERS = {
    "selective_scan": {
        "u": "bdl", "delta": "bdl", "A": "dn", "B": "bnl", "C": "bnl", "D": "d", "z": "bdl", "bias": "d",
        "grad_out": "bdl",
    },
    "wkv": {"decay": "d", "first": "d", "key": "bld", "value": "bld", "grad_out": "bld"},
    "gated_recurrence": {"x": "bld", "gate": "bld", "grad_out": "bld"},
}  # fmt: skip
_OUTPUTS = {
    "selective_scan": ("bdl", "bdn"), "wkv": ("bld", "bd", "bd", "bd"), "gated_recurrence": ("bld", "bd")
}  # fmt: skip


def _bound(step: Step, name: str) -> dict[str, Dim]:
    """The dim of each letter, the same in every operand that has it."""
    found: dict[str, Dim] = {}
    for i, operand in enumerate(step.op.operands):
        for letter, dim in zip(_LETTERS[name][operand], step.dims(i), strict=True):
            if letter in found and found[letter] and dim:
                step.same(found[letter], dim)
            elif not found.get(letter):
                found[letter] = dim
    step.facts.opaque += [found[letter] for letter in "ln" if letter in found]
    return found


@rule(*_LETTERS)
def recurrence(step: Step) -> None:
    name = step.op.name.split(".")[1]
    dims = _bound(step, name)
    for j, letters in enumerate(_OUTPUTS[name]):
        step.put(j, [dims[letter] for letter in letters])


@rule(*(f"{name}_backward" for name in _LETTERS))
def recurrence_backward(step: Step) -> None:
    """A gradient sums over the dims that its operand lacks: batch for a decay, channels for what they share."""
    name = step.op.name.split(".")[1].removesuffix("_backward")
    dims = _bound(step, name)
    for j, operand in enumerate(step.op.operands[1:]):
        own = _LETTERS[name][operand]
        step.put(j, [dims[letter] for letter in own], [dims[x] for x in "bd" if x not in own])


@rule("linalg_solve_triangular")
def solve_triangular(step: Step) -> None:
    """A [.., n, n], B [.., n, k] -> [.., n, k] where A is on the left: rows whole, columns and batch free."""
    a, b = step.dims(0), step.dims(1)
    left = step.op.attr("left", True)
    for x, y in zip(a[:-2], b[:-2], strict=True):
        if x and y:
            step.same(x, y)
    step.facts.opaque += [a[-1], a[-2], b[-2] if left else b[-1]]
    step.put(0, list(b))


@rule("unfold")
def unfold(step: Step) -> None:
    """[.., n, ..] -> [.., windows, .., size]: windows of one dim, which stays whole."""
    d = step.dim_attr("dimension")
    dims = list(step.dims(0))
    step.facts.opaque.append(dims[d])
    windows, size = step.fresh([step.out_shape()[d], step.out_shape()[-1]])
    dims[d] = windows
    step.put(0, [*dims, size])


@rule("unfold_backward")
def unfold_backward(step: Step) -> None:
    """Windows [.., windows, .., size] are added where they came from: [.., n, ..]."""
    d = step.dim_attr("dim", rank=len(step.out_shape()))
    dims = list(step.dims(0))[:-1]
    step.facts.opaque += [dims[d], step.dims(0)[-1]]
    (dims[d],) = step.fresh([step.out_shape()[d]])
    step.put(0, dims)
