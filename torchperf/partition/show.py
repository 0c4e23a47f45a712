"""A plan for people to read: each parameter's dims with what is split, and the collectives a block."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from .algebra import Factor, flatten
from .masks import Split
from .placement import Placement


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


def plan_text(placement: Placement) -> str:
    """Parameters, then collectives."""
    split, factors = placement.split, placement.prepared.factors
    lines = [f"{split.axis} = {split.ranks}" + (", sequence parallel" if split.sequence else "")]
    for name, dims in factors.parameters.items():
        lines.append(f"  {name}: " + " x ".join(f"[{show_split(dim, split)}]" for dim in dims))
    tally: Counter[tuple[str, str, str, str, int]] = Counter()
    for c in placement.collectives:
        module = factors.graph.blocks[c.block].module or "outside layers"
        tally[module, c.phase, c.kind, c.role, c.nbytes] += 1
    for (module, phase, kind, role, nbytes), count in tally.items():
        lines.append(f"  {count} {kind} of {nbytes} bytes in {module}, {phase} ({role})")
    return "\n".join(lines)
