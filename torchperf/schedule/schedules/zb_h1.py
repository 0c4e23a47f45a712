"""ZB-H1: 1F1B whose backward is cut in two, so that the weights' part fills the bubble at the end.

Rank r does the weights' part r micro-batches late, so every rank holds as much as the first does in 1F1B.

bubble   (p - 1) (f + b - w) of equal stages, b for the input and w for the weights, where w <= f, w <= b and m >= p
holds    min(m, p - rank) micro-batches whole, and what the weights' part needs of rank + 1 more
source   Qi et al. 2023, arXiv 2401.10241, section 2.1 and table 2
"""

from __future__ import annotations

from ..pipeline_action import Action, one_chunk


def order(rank: int, ranks: int, micro_batches: int, chunks: int = 1) -> list[Action]:
    """The actions of a rank. Raises TorchperfError with more than one chunk a rank."""
    one_chunk("zb-h1", chunks, "1f1b")
    ahead = min(micro_batches, ranks - rank - 1)
    actions = [Action("F", j, 0) for j in range(ahead)]
    for j in range(micro_batches):
        if j + ahead < micro_batches:
            actions.append(Action("F", j + ahead, 0))
        actions.append(Action("B", j, 0))
        if j >= rank:
            actions.append(Action("W", j - rank, 0))
    return actions + [Action("W", j, 0) for j in range(max(micro_batches - rank, 0), micro_batches)]


def bubble(ranks: int, forward: float, backward: float, weight: float) -> float:
    """Seconds that a rank of equal stages is idle; `backward` is the whole of it, `weight` its second part."""
    return (ranks - 1) * (forward + backward - 2 * weight)
