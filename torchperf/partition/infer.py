"""The plan found from the program itself: which leaves to split, so that little is left whole and little is sent.

Every leaf in a parameter is tried alone, then together with what helped more, and kept where the cost falls. `hidden`
is one leaf over the whole model and would win alone, at up to twice the cost of what it shuts out: the search runs with
and without it, and the cheaper plan stands.

The cost is in seconds of a nominal device, only to weigh one thing against another: contractions, bytes of other ops,
bytes sent, and parameters with their gradients and optimizer states (which are read and written each step); weights
alone where nothing is trained.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..graph.errors import TorchperfError
from .algebra import Factor
from .choose import (
    Candidate,
    candidates,
    indivisible,
    indivisible_sequence,
    is_table,
    nearest_degrees,
    not_tried,
    partner,
    sequence_leaves,
)
from .expert_local import LocalExperts
from .masks import Split
from .placement import Placement, place
from .prepare import Prepared

FLOPS_PER_S = 4e14
BYTES_PER_S = 2e12
SENT_PER_S = 3e11
S_PER_COLLECTIVE = 1e-6
MAX_HUBS = 3
SHUTS_OUT = "shuts out more"
BYTES_PER_PARAMETER = 28  # weight, gradient, two moments and a master copy, read and written once a step
BYTES_PER_WEIGHT = 2  # where nothing is trained


@dataclass(slots=True)
class Verdict:
    """What became of one leaf: saved is in seconds, nominal.

    taken | skipped (dearer) | shut out (by what was taken) | illegal (a conflict by itself) | indivisible
    | left (not tried)
    """

    candidate: Candidate
    verdict: str
    saved: float
    reason: str = ""

    @property
    def leaf(self) -> str:
        """The leaf by size and name."""
        return f"{self.candidate.leaf.size} {self.candidate.leaf.name}".strip()


@dataclass(slots=True)
class Inferred:
    """A plan and why. `placement` is without sequence parallelism's leaf unless it was asked for.

    lines   pattern -> style of a plan that was given; empty where it was inferred
    """

    split: Split
    placement: Placement
    cost: float
    verdicts: list[Verdict] = field(default_factory=list)
    lines: Mapping[str, str] = field(default_factory=dict)

    @property
    def taken(self) -> list[Candidate]:
        return [v.candidate for v in self.verdicts if v.verdict == "taken"]

    def __str__(self) -> str:
        """A line a parameter: its dims, the split one marked."""
        from .show import plan_text

        return plan_text(self)


def cost(placement: Placement) -> float:
    """Nominal seconds of the split program, less those of the whole one: below 0 where splitting helps."""
    prepared, split = placement.prepared, placement.split
    saved_flops = sum(n * b.flops for n, b in zip(prepared.counts, placement.blocks, strict=True))
    saved_bytes = sum(n * b.moved for n, b in zip(prepared.counts, placement.blocks, strict=True))
    sent = sum(c.count * (c.sent / SENT_PER_S + S_PER_COLLECTIVE) for c in placement.collectives)
    kept = 0.0
    for name, dims in prepared.factors.parameters.items():
        degree = split.degree(split.held(dims)[0])
        if degree > 1:
            numel = 1.0
            for dim in dims:
                for factor in dim:
                    numel *= factor.size
            kept += numel * prepared.factors.copies[name] * (1 - 1 / degree)
    trained = prepared.factors.graph.facts.mode == "train"
    states = kept * (BYTES_PER_PARAMETER if trained else BYTES_PER_WEIGHT) / BYTES_PER_S
    return sent - saved_flops / FLOPS_PER_S - saved_bytes / BYTES_PER_S - states


def illegal(placement: Placement) -> str:
    """Why a plan must not be inferred: a conflict, or an op that needs whole what the plan splits; "" if it may."""
    if placement.conflicts:
        return placement.conflicts[0]
    return next((f"{c.cause} needs the split dim whole" for c in placement.collectives if c.role == "reshape"), "")


def infer(
    prepared: Prepared, ranks: int, *, axis: str = "tp", sequence: bool = False, strict: bool = True,
    experts: bool = False, regather: bool = True, norm_gradients: bool = True, local: LocalExperts | None = None,
) -> Inferred:  # fmt: skip
    """The plan for one mesh axis of `ranks`.

    sequence  also split what lies between the split regions along the sequence (reduce-scatter and all-gather)
    experts   whole experts may be split over this axis; else they belong to an axis of their own
    strict    raise TorchperfError (parameter, dim, nearest legal degrees) where a leaf that should be split cannot be;
              otherwise it stays whole, and its verdict says so. Embedding tables stay whole either way.
    regather, norm_gradients  see `Split`: what the runtime does in backward; the plan is the same
    local     experts that stay whole, on the rank's own tokens: no leaf of theirs is split, `hidden` neither
    """
    kept = local.leaves if local is not None else frozenset()
    every: list[Candidate] = []
    left: list[Verdict] = []
    for c in candidates(prepared.factors):
        if reason := not_tried(c, experts, kept):
            left.append(Verdict(c, "left", 0.0, reason))
        else:
            every.append(c)
    along = sequence_leaves(prepared.factors) if sequence else ()
    found = _search(prepared, every, (ranks,), axis, {})
    if any(c.leaf.size % ranks for c in found.taken):
        found = _repair(prepared, every, found, ranks, axis, strict, along)
    found.verdicts += left
    if sequence or not norm_gradients:
        for leaf in along:
            if leaf.size % ranks:
                near = _nearest(prepared, every, found.taken, ranks, axis, along)
                raise indivisible_sequence(prepared.factors, leaf, ranks, near)
        found.split = Split(axis, found.split.sizes, found.split.chosen, along, regather, norm_gradients)
        if local is not None:
            local.enter(prepared.factors, found.split)
        found.placement = place(prepared, found.split)
        found.cost = cost(found.placement)
    return found


def _repair(
    prepared: Prepared, every: list[Candidate], wish: Inferred, ranks: int, axis: str, strict: bool,
    along: tuple[Factor, ...] | None = None,
) -> Inferred:  # fmt: skip
    """The wish holds leaves that the ranks do not divide: give them a partner, or leave them whole.

    The rest of the wish stands: a vocabulary of 50257 is no reason to split `hidden` in place of heads and ffn.

    along   sequences that are split too, of which an error's nearest degrees must be divisors; None: name no others
    """

    def refuse(candidate: Candidate) -> TorchperfError:
        near = [1] if along is None else _nearest(prepared, every, wish.taken, ranks, axis, along)
        return indivisible(prepared.factors, candidate, ranks, near)

    pairs: dict[int, tuple[Candidate, Candidate]] = {}
    sizes: tuple[int, ...] = (ranks,)
    refused: list[Candidate] = []
    of = {id(c.leaf): c for c in every}
    for candidate in wish.taken:
        if candidate.leaf.size % ranks == 0:
            continue
        found = partner(prepared.factors, candidate.leaf, ranks)
        if found is not None and (sizes == (ranks,) or sizes == found[1:]):
            pairs[id(candidate.leaf)] = (candidate, of[id(found[0])])
            sizes = found[1:]
        else:
            refused.append(candidate)
    if strict:
        for candidate in refused:
            if not is_table(prepared.factors, candidate):
                raise refuse(candidate)
    partners = {id(inner.leaf) for _, inner in pairs.values()}
    banned = {id(v.candidate.leaf) for v in wish.verdicts if v.reason == SHUTS_OUT or v.verdict == "shut out"}
    banned -= partners
    legal = [
        c for c in every if (c.leaf.size % ranks == 0 and id(c.leaf) not in banned | partners) or id(c.leaf) in pairs
    ]
    out = _search(prepared, legal, sizes, axis, {key: inner for key, (_, inner) in pairs.items()})
    taken = {id(c.leaf) for c in out.taken}
    for key, (candidate, _) in pairs.items() if strict else ():
        if key not in taken:
            raise refuse(candidate)
    seen = {id(v.candidate.leaf) for v in out.verdicts}
    out.verdicts += [v for v in wish.verdicts if id(v.candidate.leaf) in banned - seen]
    for candidate in every:
        if id(candidate.leaf) not in seen | partners | banned:
            verdict = Verdict(candidate, "indivisible", 0.0)
            verdict.reason = f"{ranks} does not divide {verdict.leaf}"
            out.verdicts.append(verdict)
    return out


def _nearest(
    prepared: Prepared, every: list[Candidate], wish: list[Candidate], ranks: int, axis: str, along: tuple[Factor, ...]
) -> list[int]:
    """Degrees next to `ranks` for which there is a plan; lookup tables may stay whole."""

    def legal(degree: int) -> bool:
        try:
            _repair(prepared, every, _search(prepared, every, (degree,), axis, {}), degree, axis, True)
        except TorchperfError:
            return degree == 1
        return True

    split = [c.leaf for c in wish if not is_table(prepared.factors, c)]
    return nearest_degrees(prepared.factors, split or [c.leaf for c in wish], ranks, along, legal)


def _search(
    prepared: Prepared, every: list[Candidate], sizes: tuple[int, ...], axis: str, inner: dict[int, Candidate]
) -> Inferred:
    """Greedy union of single leaves, with and without the hub."""
    trials = _Trials(prepared, Split(axis, sizes), inner)
    alone = sorted(((trials.of([candidate]), candidate) for candidate in every), key=lambda item: item[0].cost)
    banned: list[Candidate] = []
    runs = [_greedy(trials, alone, banned)]
    own = {id(candidate): tried.cost for tried, candidate in alone}
    for hub in sorted(every, key=lambda c: -len(c.uses))[:MAX_HUBS]:  # an encoder and its decoder have a hub each
        out = [own[id(v.candidate)] for v in runs[-1].verdicts if v.verdict == "shut out"]
        if any(c is hub for c in runs[-1].taken) and out and (len(out) > 1 or out[0] < own[id(hub)]):
            banned.append(hub)
            runs.append(_greedy(trials, alone, banned))
    return min(runs, key=lambda run: run.cost)


class _Trials:
    """Plans tried over one axis, each placed once."""

    def __init__(self, prepared: Prepared, whole: Split, inner: dict[int, Candidate]) -> None:
        self.prepared, self.whole, self.inner = prepared, whole, inner
        self.known: dict[frozenset[int], Inferred] = {}

    def of(self, taken: list[Candidate]) -> Inferred:
        """The plan of these leaves, placed and weighed."""
        key = frozenset(id(c.leaf) for c in taken)
        if key not in self.known:
            split = self._split(taken)
            placement = place(self.prepared, split)
            self.known[key] = Inferred(split, placement, cost(placement))
        return self.known[key]

    def beside(self, taken: list[Candidate], candidate: Candidate) -> str:
        """Why the candidate cannot join, where that shows without placing it: a value holds two leaves of one bit."""
        held = self._split(taken).chosen
        for key, (leaf, mask) in self._split([candidate]).chosen.items():
            for other in self.prepared.together.get(key, set()) & held.keys():
                if other != key and held[other][1] & mask:
                    return f"`{leaf}` and `{held[other][0]}` would split one value twice over the axis"
        return ""

    def _split(self, taken: list[Candidate]) -> Split:
        out = Split(self.whole.axis, self.whole.sizes)
        for candidate in taken:
            pair = self.inner.get(id(candidate.leaf))
            out.chosen[id(candidate.leaf)] = (candidate.leaf, out.full if pair is None else 1)
            if pair is not None:
                out.chosen[id(pair.leaf)] = (pair.leaf, 2)
        return out


def _greedy(trials: _Trials, alone: list[tuple[Inferred, Candidate]], banned: list[Candidate]) -> Inferred:
    best = trials.of([])
    taken: list[Candidate] = []
    verdicts: list[Verdict] = []
    for own, candidate in alone:
        wrong = illegal(own.placement)
        if wrong:
            verdicts.append(Verdict(candidate, "illegal", 0.0, wrong))
            continue
        if own.cost >= 0 or any(candidate is hub for hub in banned):
            reason = "costs more than it saves" if own.cost >= 0 else SHUTS_OUT
            verdicts.append(Verdict(candidate, "skipped", -own.cost, reason))
            continue
        wrong = trials.beside(taken, candidate)
        tried = best if wrong else trials.of([*taken, candidate])
        wrong = wrong or illegal(tried.placement)
        if wrong:
            verdicts.append(Verdict(candidate, "shut out", 0.0, wrong))
        elif tried.cost < best.cost:
            verdicts.append(Verdict(candidate, "taken", best.cost - tried.cost))
            taken.append(candidate)
            best = tried
        else:
            verdicts.append(Verdict(candidate, "shut out", best.cost - tried.cost, "costs more than it saves"))
    return Inferred(best.split, best.placement, best.cost, verdicts)
