"""Leaves that a plan may split, and a split made of chosen ones; where one does not divide, what would."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
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


def not_tried(candidate: Candidate, experts: bool, kept: frozenset[int]) -> str:
    """Why a leaf is left out of the search; "" for one that takes part."""
    if candidate.leaf.name == "positions":
        return "a table of positions stays whole"
    if id(candidate.leaf) in kept:
        return "experts stay whole"
    if candidate.leaf.name == "experts" and not experts:
        return "whole experts belong to an axis of their own"
    return ""


def is_table(factors: Factors, candidate: Candidate) -> bool:
    """Whether the leaf only counts the rows of lookup tables (a vocabulary), and of heads tied to them."""
    looked_up: set[int] = set()
    for records in factors.blocks:
        for facts in records:
            if facts.kind == "lookup" and facts.op.name.startswith("aten.embedding"):
                looked_up.update(id(leaf) for dim in facts.contracted[0] for leaf in leaves(dim))
    if id(candidate.leaf) in looked_up:
        return True
    return len(candidate.uses) <= 2 and all("*" not in name for name, _ in candidate.uses)


def partner(factors: Factors, leaf: Factor, ranks: int) -> tuple[Factor, int, int] | None:
    """(inner leaf, ranks for `leaf`, ranks for the inner one) where the two together split over `ranks`.

    Query heads are kv_heads * group: with more ranks than KV heads the group takes what is left over.
    """
    own = math.gcd(leaf.size, ranks)
    rest = ranks // own
    if own == 1 or rest == 1:
        return None
    inner = next((inner for inner in _inner(factors, leaf) if inner.size % rest == 0), None)
    return None if inner is None else (inner, own, rest)


def _inner(factors: Factors, leaf: Factor) -> Iterator[Factor]:
    """The leaves just inside `leaf`, in any parameter; the innermost, head_dim, is no partner."""
    for dims in factors.parameters.values():
        for dim in dims:
            for outer, inner in itertools.pairwise(flatten(dim)[:-1]):
                if outer is leaf and inner.kind == "leaf":
                    yield inner


def nearest_degrees(
    factors: Factors, split: Sequence[Factor], ranks: int, sequence: Sequence[Factor] = (),
    legal: Callable[[int], bool] = lambda degree: True,
) -> list[int]:  # fmt: skip
    """The largest degree below `ranks` and the smallest above that divide all leaves of `split`, and the sequences.

    legal   what else a degree must meet; asked of the nearest ones alone
    """
    first = min((*split, *sequence), key=lambda leaf: leaf.size)
    sizes = {first.size * inner for inner in (1, *(leaf.size for leaf in _inner(factors, first)))}
    degrees = [d for d in range(1, max(sizes) + 1) if any(size % d == 0 for size in sizes)]

    def fits(degree: int) -> bool:
        if any(leaf.size % degree for leaf in sequence):
            return False
        pairs = {p and p[1:] for p in (partner(factors, leaf, degree) for leaf in split if leaf.size % degree)}
        return len(pairs) <= 1 and None not in pairs and legal(degree)

    below, above = (d for d in reversed(degrees) if d < ranks), (d for d in degrees if d > ranks)
    return [d for side in (below, above) if (d := next(filter(fits, side), 0))]


def indivisible(factors: Factors, candidate: Candidate, ranks: int, near: Sequence[int] = ()) -> TorchperfError:
    """The error for a leaf that `ranks` does not divide. `near`: degrees that do, with all else that is split."""
    name, dim = candidate.uses[0]
    leaf = candidate.leaf
    legal = " or ".join(map(str, near or nearest_degrees(factors, [leaf], ranks)))
    dims = factors.parameters.get(name, [])
    parts = "features" if dims and flatten(dims[dim]) == [leaf] else "parts"
    return TorchperfError(
        f"{ranks} ranks do not divide the {leaf.size} {leaf.name or parts} of `{name}`",
        facts=[
            ("parameter", name), ("dim", f"{dim}: {show(dims[dim] if dims else [leaf])}"), ("nearest", legal)
        ],
        hint="keep it whole: no more ranks divide all that would be split" if legal == "1" else
        f"split over {legal} ranks",
    )  # fmt: skip


def split_of(
    factors: Factors, chosen: Iterable[Factor], ranks: int, *, axis: str = "tp", sequence: tuple[Factor, ...] = ()
) -> Split:
    """The split of these leaves over one axis; a leaf with fewer positions than ranks brings its partner.

    Raises TorchperfError where a leaf does not divide, naming parameter, dim and the nearest legal degrees.
    """
    known = {id(c.leaf): c for c in candidates(factors)}
    plain: list[Factor] = []
    pairs: list[tuple[Factor, Factor, int, int]] = []
    every = list(chosen)
    for leaf in every:
        if leaf.size % ranks == 0:
            plain.append(leaf)
            continue
        found = partner(factors, leaf, ranks)
        if found is None or (pairs and (pairs[0][2], pairs[0][3]) != found[1:]):
            near = nearest_degrees(factors, every, ranks, sequence)
            raise indivisible(factors, known.get(id(leaf), Candidate(leaf, [("an activation", 0)])), ranks, near)
        pairs.append((leaf, *found))
    for leaf in sequence:
        if leaf.size % ranks:
            raise indivisible_sequence(factors, leaf, ranks, nearest_degrees(factors, every, ranks, sequence))
    sizes = (pairs[0][2], pairs[0][3]) if pairs else (ranks,)
    split = Split(axis, sizes, sequence=sequence)
    for leaf in plain:
        split.chosen[id(leaf)] = (leaf, split.full)
    for outer, inner, _, _ in pairs:
        split.chosen[id(outer)] = (outer, 1)
        split.chosen[id(inner)] = (inner, 2)
    return split


def indivisible_sequence(factors: Factors, sequence: Factor, ranks: int, near: Sequence[int]) -> TorchperfError:
    """The error for a sequence that `ranks` does not divide; `near`: degrees that do, with all else that is split."""
    legal = " or ".join(str(d) for d in near if d > 1) or f"none: no other degree divides {sequence.size} and the rest"
    longest = dict(factors.graph.facts.limits).get("seq", math.inf)
    multiple = sequence.size // ranks * ranks
    lengths = " or ".join(str(n) for n in (multiple, multiple + ranks) if 0 < n <= longest)
    return TorchperfError(
        f"{ranks} ranks do not divide the sequence of {sequence.size}",
        facts=[("dim", "sequence"), ("nearest", legal)],
        hint=f"a sequence of {lengths}, or no sequence parallelism" if lengths else "no sequence parallelism",
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
