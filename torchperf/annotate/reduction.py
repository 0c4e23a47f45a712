"""Reductions and cumulative sums, as a table of FLOPs per element of the input."""

from __future__ import annotations

from torchperf.graph.op import Op
from torchperf.graph.work import Work

from .registry import Rule, aten, rule
from .traffic import dtype_of, listed, read, vector, written

PER_ELEMENT: dict[int, str] = {
    1: """
        sum nansum mean nanmean prod amax amin max min argmax argmin all any _is_all_true
        _is_any_true count_nonzero cumsum cumprod sum_to_size trace hash_tensor""",
    2: """
        norm linalg_vector_norm linalg__powsum aminmax _aminmax cumprod_backward frobenius_norm
        nuclear_norm renorm dist allclose diff""",
    3: "var std norm_except_dim",
    4: "var_mean std_mean",
}
LISTS = {"norm": 2, "max": 1, "powsum": 2}


def reducing(per_element: int) -> Rule:
    """The rule of a table row."""

    def reduction_rule(op: Op) -> Work:
        """One number from many, or a running total

        flops    per_element |x|        read x        write the result
        """
        flops = per_element * op.inputs[0].numel
        return Work("reduction", "vector", dtype_of(op), flops, flops, flops, read(op), written(op))

    return reduction_rule


for _count, _names in PER_ELEMENT.items():
    rule(*aten(_names))(reducing(_count))


def _list_rule(per_element: int) -> Rule:
    def list_reduction(op: Op) -> Work:
        """One number from each tensor of a list

        flops    per_element x the sum of |self|
        """
        return vector(op, "reduction", per_element * sum(value.numel for value in op.inputs))

    return list_reduction


for _name, _count in LISTS.items():
    rule(f"aten._foreach_{_name}")(_list_rule(_count))


@rule("aten._amp_foreach_non_finite_check_and_unscale_")
def unscale(op: Op) -> Work:
    """Gradients divided by the loss scale and checked for infinities, in place

    flops    2 |gradients|        read and write the gradients
    """
    gradients = sum(value.nbytes for value in listed(op, "self"))
    flops = 2 * sum(value.numel for value in listed(op, "self"))
    return Work("reduction", "vector", dtype_of(op), flops, flops, flops, read(op), gradients)


@rule(*aten("_cdist_forward cdist _cdist_backward _pdist_forward _euclidean_dist"))
def pairwise_distance(op: Op) -> Work:
    """Distance of every row of x1 to every row of x2, [..,p,d] and [..,r,d] -> [..,p,r]

    flops    3 p r d (as if no matrix product were used)
    """
    x = op.inputs[0]
    width = x.shape[-1] if x.shape else 1
    assert isinstance(width, int)
    return vector(op, "reduction", 3 * op.outputs[0].numel * width)
