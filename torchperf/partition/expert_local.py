"""Experts that tensor parallelism leaves whole, where the rest of a layer is split (Megatron-LM's expert tensor
parallel size of 1): each rank routes its own slice of the tokens, and the rows that these become.

Sort, look-ups and counts mix rows, yet need no rank but their own. The gradients of experts' weights are of the rank's
own rows; ranks that hold the same experts sum them once a step (`replicas`).
"""

from __future__ import annotations

from dataclasses import dataclass

from ..graph.errors import TorchperfError
from ..graph.graph import Graph
from .algebra import Factor, leaves, show
from .choose import indivisible_sequence, nearest_degrees
from .expert_domain import Experts, NoExperts, Rows, key
from .expert_walk import find_experts
from .factors import Factors
from .local import starred
from .masks import Split
from .step import OpFactors


@dataclass(frozen=True, slots=True)
class LocalExperts:
    """What stays on the rank.

    routed      of each block, the ops that meet rows on their way through experts
    complete    classes of storages with a slice for each expert: weights, biases, their gradients
    leaves      ids of the leaves in these parameters
    rows        leaves that count rows in an order of their own, as many to a rank as its tokens become
    parameters  starred names of these parameters
    """

    routed: tuple[frozenset[int], ...]
    complete: frozenset[int]
    leaves: frozenset[int]
    rows: tuple[Factor, ...]
    parameters: frozenset[str]

    def holds_alone(self, uses: list[tuple[str, int]], leaf: Factor) -> bool:
        """Whether a leaf stands in these parameters alone. Raises TorchperfError where it splits others with them."""
        if id(leaf) not in self.leaves:
            return False
        others = [name for name, _ in uses if name not in self.parameters]
        if others:
            raise TorchperfError(
                f"the plan splits experts through `{others[0]}`",
                facts=[("dim", show([leaf])), ("flag", "--expert-tp 1")],
                hint="leave this parameter out of the plan, or `--expert-tp`",
            )
        return True

    def enter(self, factors: Factors, split: Split) -> None:
        """Let a split along the sequence keep to it. Raises TorchperfError where the ranks do not divide the rows."""
        for leaf in self.rows:
            if leaf.size % split.ranks:
                near = nearest_degrees(factors, [leaf], split.ranks)
                raise indivisible_sequence(factors, leaf, split.ranks, near)
        split.sequence = (*split.sequence, *self.rows)
        split.routed, split.complete = self.routed, self.complete


def find_local(factors: Factors) -> LocalExperts:
    """The experts of a factored program, to be left whole. Raises TorchperfError where it has none."""
    try:
        experts = find_experts(factors)
    except NoExperts as error:
        raise NoExperts(error.message, facts=error.facts, hint="leave out `--expert-tp`") from error
    inside = {
        id(leaf) for name in experts.parameters for dim in factors.parameters.get(name, []) for leaf in leaves(dim)
    }
    routed = tuple(
        frozenset(i for i, facts in enumerate(records) if _near(facts, where) and _meets(facts, experts.rows))
        for records, where in zip(factors.blocks, _regions(experts), strict=True)
    )
    return LocalExperts(
        routed, frozenset(experts.local), frozenset(inside), _own_rows(experts), frozenset(experts.parameters)
    )


def first_names(graph: Graph, local: LocalExperts) -> frozenset[str]:
    """The first names of the parameters of experts, of every layer."""
    names = starred(graph)
    return frozenset(p.names[0] for p in graph.facts.parameters if names.get(p.storage) in local.parameters)


def _meets(facts: OpFactors, rows: Rows) -> bool:
    """Whether the op reads or writes rows, or makes a tensor that they may be written to."""
    made_like = facts.kind == "create" and bool(facts.op.inputs)
    return made_like or any(rows.holds(dims) for dims in (*facts.inputs, *facts.outputs))


def _regions(experts: Experts) -> list[tuple[str, ...]]:
    """Of each block, the modules above its products, within the layer.

    With one expert a token, rows are counted as tokens are: only there may an op keep to its rank's.
    """
    found = []
    for block, forced in zip(experts.factors.graph.blocks, experts.forced, strict=True):
        modules = {block.ops[i].module for i in forced}
        inner = {m if m == block.module else m.rpartition(".")[0] for m in modules}
        found.append(tuple(sorted(inner)))
    return found


def _near(facts: OpFactors, regions: tuple[str, ...]) -> bool:
    module = facts.op.module
    return any(not region or module == region or module.startswith(f"{region}.") for region in regions)


def _own_rows(experts: Experts) -> tuple[Factor, ...]:
    """The outermost leaf of sorted rows, where these are not made of tokens and choices."""
    tokens = {id(leaf) for leaf in experts.factors.leaf("seq")}
    outer = {k[0] for k in experts.rows.ragged if tokens.isdisjoint(k)}
    found: dict[int, Factor] = {}
    for records, forced in zip(experts.factors.blocks, experts.forced, strict=True):
        for i in forced:
            for dims in (*records[i].inputs, *records[i].outputs):
                every = (leaf for dim in dims if key(dim) in experts.rows.ragged for leaf in leaves(dim))
                found.update({id(leaf): leaf for leaf in every if id(leaf) in outer})
    return tuple(found.values())
