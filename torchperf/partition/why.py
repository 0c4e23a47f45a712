"""Why a parameter is split where it is, or left whole, and what is left whole costs.

An inferred plan gives the verdict on each leaf (`infer`), a given one the line that decides.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..graph.dtype import nbytes
from .algebra import Dims, leaves
from .infer import SHUTS_OUT, Inferred, Verdict
from .plan_styles import COLWISE, EXPERTS, ROWWISE, WHOLE, matches, parameter_names
from .show import show_split

LARGE = 0.01  # of a rank's share of the parameters: from there on what it holds above it is told
PAD = 128  # Megatron-LM pads a vocabulary to a multiple of this times tp: `make_vocab_size_divisible_by`
SPLITS = COLWISE | ROWWISE | EXPERTS


@dataclass(frozen=True, slots=True)
class Reason:
    """Of one parameter, `*` for the layer: its dims, the split one marked, and why. saved: nominal seconds, or None."""

    parameter: str
    dims: str
    split: bool
    why: str
    saved: float | None = None


@dataclass(frozen=True, slots=True)
class Indivisible:
    """A large parameter that stays whole because the ranks do not divide one of its dims.

    nbytes   of weights that a rank holds above its share, all layers
    table    whether the dim counts words: rows that can be padded without another meaning
    """

    parameter: str
    dim: str
    size: int
    ranks: int
    nbytes: int
    table: bool

    @property
    def padded(self) -> int:
        """The next size that the ranks divide; of a vocabulary, the one that Megatron-LM takes."""
        unit = self.ranks * (PAD if self.table else 1)
        return -(-self.size // unit) * unit


def reasons(found: Inferred) -> tuple[Reason, ...]:
    """One for each parameter, in the order of the parameters."""
    factors, split = found.placement.prepared.factors, found.split
    verdicts = {id(v.candidate.leaf): v for v in found.verdicts}
    names = parameter_names(factors.graph)
    rows = []
    for name, dims in factors.parameters.items():
        own = list(_verdicts(dims, verdicts))
        taken = [v for v in own if v.verdict == "taken"]
        held = bool(split.held(dims)[0])
        if found.lines:
            why = _line(found, held, taken, own, names.get(name.partition(" ")[0], (name,)))
        elif held:
            why = ", ".join(f"{v.leaf} saves {_seconds(v.saved)}" for v in taken)
        else:
            why = "whole: " + ("; ".join(_left(v) for v in own) or "nothing to split")
        saved = sum(v.saved for v in taken) if taken and not found.lines else None
        rows.append(Reason(name, " x ".join(f"[{show_split(dim, split)}]" for dim in dims), held, why, saved))
    return tuple(rows)


def _verdicts(dims: Dims, verdicts: dict[int, Verdict]) -> Iterator[Verdict]:
    seen: set[int] = set()
    for dim in dims:
        for leaf in leaves(dim):
            if id(leaf) in verdicts and id(leaf) not in seen:
                seen.add(id(leaf))
                yield verdicts[id(leaf)]


def _left(v: Verdict) -> str:
    if v.verdict == "indivisible":
        return v.reason
    return f"{v.leaf}: " + ("would shut out what saves more" if v.reason == SHUTS_OUT else v.reason)


def _seconds(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"


def _line(found: Inferred, held: bool, taken: list[Verdict], own: list[Verdict], names: tuple[str, ...]) -> str:
    """The line of a given plan that decides: the parameter's own, else that of one whose leaf it shares."""
    lines = {p: style for p, style in found.lines.items() if any(matches(p, name) for name in names)}
    if held:
        mine = [f'"{p}" = "{style}"' for p, style in lines.items() if style in SPLITS]
        return mine[0] if mine else "as " + ", ".join(f'"{v.reason}" = "{found.lines[v.reason]}"' for v in taken)
    skipped = [v.reason for v in own if v.verdict == "skipped"]
    if skipped:
        return "whole: " + "; ".join(skipped)
    for pattern, style in lines.items():
        return f'whole: "{pattern}" = "{style}"' + ("" if style in WHOLE else " splits none of its dims")
    return "whole: no line of the plan names it"


def above_share(found: Inferred) -> float:
    """FLOPs of contractions in a rank's forward, over those of the whole divided by the ranks, less 1."""
    prepared = found.placement.prepared
    whole = saved = 0.0
    rows = zip(prepared.counts, prepared.factors.graph.blocks, prepared.flops, found.placement.blocks, strict=True)
    for count, block, flops, placed in rows:
        if block.phase == "forward":
            whole += count * sum(flops)
            saved += count * placed.flops
    return (whole - saved) * found.split.ranks / whole - 1 if whole else 0.0


def left_whole(found: Inferred) -> tuple[Indivisible, ...]:
    """The large parameters that are whole because the ranks do not divide a dim of theirs."""
    factors, ranks = found.placement.prepared.factors, found.split.ranks
    facts = factors.graph.facts
    dtype = facts.parameters[0].dtype if facts.parameters else "bf16"
    dtypes = {name: p.dtype for p in facts.parameters for name in p.names}
    least = LARGE * sum(p.numel for p in facts.parameters)
    refused = {id(v.candidate.leaf): v.candidate.leaf for v in found.verdicts if v.verdict == "indivisible"}
    rows = []
    for name, dims in factors.parameters.items():
        every = [leaf for dim in dims for leaf in leaves(dim)]
        leaf = next((x for x in every if id(x) in refused), None)
        numel = factors.copies[name]
        for dim in dims:
            for factor in dim:
                numel *= factor.size
        if leaf is None or numel * (ranks - 1) < least or found.split.held(dims)[0]:
            continue
        extra = nbytes(numel, dtypes.get(name.partition(" ")[0], dtype)) * (ranks - 1) // ranks
        rows.append(Indivisible(name, leaf.name or "positions", leaf.size, ranks, extra, "*" not in name))
    return tuple(rows)
