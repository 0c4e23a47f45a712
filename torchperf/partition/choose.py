"""Leaves that a plan may split, and a split made of chosen ones; where one does not divide, what would."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from ..graph.errors import TorchperfError
from .algebra import Factor, flatten, leaves, show
from .factors import Factors
from .masks import Split


@dataclass(slots=True)
class Candidate:
    """A leaf that stands in parameters. uses: (parameter, dim) of each."""

    leaf: Factor
    uses: list[tuple[str, int]] = field(default_factory=list)

    @property
    def where(self) -> str:
        """The first parameter and dim, for messages."""
        name, dim = self.uses[0]
        return f"{name}, dim {dim}" + (f" and {len(self.uses) - 1} more" if len(self.uses) > 1 else "")


def candidates(factors: Factors) -> list[Candidate]:
    """Every leaf of every parameter, once, in the order of the parameters."""
    found: dict[int, Candidate] = {}
    for name, dims in factors.parameters.items():
        for d, dim in enumerate(dims):
            for leaf in leaves(dim):
                if leaf.size > 1:
                    found.setdefault(id(leaf), Candidate(leaf)).uses.append((name, d))
    return list(found.values())


def partner(factors: Factors, leaf: Factor, ranks: int) -> tuple[Factor, int, int] | None:
    """(inner leaf, ranks for `leaf`, ranks for the inner one) where the two together split over `ranks`.

    Query heads are kv_heads * group: with more ranks than KV heads the group takes what is left over.
    """
    own = math.gcd(leaf.size, ranks)
    rest = ranks // own
    if own == 1 or rest == 1:
        return None
    for dims in factors.parameters.values():
        for dim in dims:
            flat = flatten(dim)
            for outer, inner in itertools.pairwise(flat[:-1]):  # the innermost, head_dim, is no partner
                if outer is leaf and inner.kind == "leaf" and inner.size % rest == 0:
                    return inner, own, rest
    return None


def nearest_degrees(size: int, ranks: int) -> list[int]:
    """The largest divisor of `size` below `ranks` and the smallest above."""
    divisors = [d for d in range(1, size + 1) if size % d == 0]
    return [
        d
        for d in (
            max((d for d in divisors if d < ranks), default=0),
            min((d for d in divisors if d > ranks), default=0),
        )
        if d
    ]


def indivisible(factors: Factors, candidate: Candidate, ranks: int) -> TorchperfError:
    """The error for a leaf that `ranks` does not divide."""
    name, dim = candidate.uses[0]
    leaf = candidate.leaf
    legal = " or ".join(str(d) for d in nearest_degrees(leaf.size, ranks))
    return TorchperfError(
        f"{ranks} ranks do not divide the {leaf.size} {leaf.name or 'positions'} of `{name}`",
        facts=[("parameter", name), ("dim", f"{dim}: {show(factors.parameters[name][dim])}"), ("nearest", legal)],
        hint=f"split over {legal} ranks",
    )


def split_of(
    factors: Factors, chosen: Iterable[Factor], ranks: int, *, axis: str = "tp", sequence: tuple[Factor, ...] = ()
) -> Split:
    """The split of these leaves over one axis; a leaf with fewer positions than ranks brings its partner.

    Raises TorchperfError where a leaf does not divide, naming parameter, dim and the nearest legal degrees.
    """
    known = {id(c.leaf): c for c in candidates(factors)}
    plain: list[Factor] = []
    pairs: list[tuple[Factor, Factor, int, int]] = []
    for leaf in chosen:
        if leaf.size % ranks == 0:
            plain.append(leaf)
            continue
        found = partner(factors, leaf, ranks)
        if found is None or (pairs and (pairs[0][2], pairs[0][3]) != found[1:]):
            raise indivisible(factors, known.get(id(leaf), Candidate(leaf, [("an activation", 0)])), ranks)
        pairs.append((leaf, *found))
    for leaf in sequence:
        if leaf.size % ranks:
            raise indivisible_sequence(leaf, ranks)
    sizes = (pairs[0][2], pairs[0][3]) if pairs else (ranks,)
    split = Split(axis, sizes, sequence=sequence)
    for leaf in plain:
        split.chosen[id(leaf)] = (leaf, split.full)
    for outer, inner, _, _ in pairs:
        split.chosen[id(outer)] = (outer, 1)
        split.chosen[id(inner)] = (inner, 2)
    return split


def indivisible_sequence(sequence: Factor, ranks: int) -> TorchperfError:
    """The error for a sequence that `ranks` does not divide."""
    legal = " or ".join(str(d) for d in nearest_degrees(sequence.size, ranks))
    return TorchperfError(
        f"{ranks} ranks do not divide the sequence of {sequence.size}",
        facts=[("dim", "sequence"), ("nearest", legal)],
        hint=f"a sequence that is a multiple of {ranks}, or no sequence parallelism",
    )


def sequence_leaves(factors: Factors) -> tuple[Factor, ...]:
    """The sequences, known by the inputs they come from and by the activations that hold them together with `hidden`.

    An encoder and its decoder have one each. Raises TorchperfError where there is none.
    """
    hidden = {id(leaf) for leaf in factors.leaf("hidden")}
    names = {id(leaf): leaf for leaf in factors.leaf("seq")}
    found: dict[int, Factor] = {}
    for dims in factors.values.values():
        inside = [leaf for dim in dims for leaf in leaves(dim)]
        if any(id(leaf) in hidden for leaf in inside):
            found.update({id(leaf): leaf for leaf in inside if id(leaf) in names})
    if not found:
        raise TorchperfError(
            "sequence parallelism needs a sequence that activations share",
            facts=[("found", ", ".join(str(f.size) for f in names.values()) or "none")],
            hint="leave out `--sequence-parallel`",
        )
    return tuple(found.values())
