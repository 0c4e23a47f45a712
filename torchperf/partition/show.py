"""A plan for people to read: each parameter's dims with what is split and why, and the collectives a block."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from .algebra import Factor, flatten
from .masks import Split

if TYPE_CHECKING:
    from .infer import Inferred

SEEN = 5e-4  # share of FLOPs from which it is told


def show_split(dim: Iterable[Factor], split: Split) -> str:
    """`8/8 kv_heads * 4 group * 128`: a factor that is split over 8 ranks reads size/8."""
    texts = []
    for factor in flatten(dim):
        if factor.kind == "sum":
            texts.append("(" + " + ".join(show_split(segment, split) for segment in factor.parts) + ")")
            continue
        held = split.chosen.get(id(factor))
        size = f"{factor.size}/{split.degree(held[1])}" if held else str(factor.size)
        texts.append(f"{size} {factor.name}".strip())
    return "*".join(texts) or "1"


def plan_text(found: Inferred) -> str:
    """Parameters, each with why; what a rank computes above its share; then collectives."""
    from .why import above_share, reasons

    placement, split = found.placement, found.split
    factors = placement.prepared.factors
    why = "the plan's lines" if found.lines else "inferred; savings of a micro-batch and step of a nominal device"
    lines = [f"{split.axis} = {split.ranks}" + (", sequence parallel" if split.sequence else "") + f" ({why})"]
    lines += [f"  {row.parameter}: {row.dims}; {row.why}" for row in reasons(found)]
    above = above_share(found)
    if above >= SEEN:
        lines.append(
            f"  forward FLOPs of a rank are {above:.1%} above 1/{split.ranks}: what is whole is computed on each"
        )
    tally: Counter[tuple[str, str, str, str, int]] = Counter()
    for c in placement.collectives:
        module = factors.graph.blocks[c.block].module or "outside layers"
        tally[module, c.phase, c.kind, c.role, c.nbytes] += 1
    for (module, phase, kind, role, nbytes), count in tally.items():
        lines.append(f"  {count} {kind} of {nbytes} bytes in {module}, {phase} ({role})")
    return "\n".join(lines)
