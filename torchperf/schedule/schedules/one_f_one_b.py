"""1F1B, PipeDream-flush: as many forwards as there are ranks behind, then one forward, one backward.

bubble   (p - 1) (f + b) of equal stages, as GPipe
holds    min(m, p - rank) micro-batches
source   Narayanan et al. 2021, arXiv 2104.04473, section 2.2.1
"""

from __future__ import annotations

from ..pipeline_action import Action, one_chunk


def order(rank: int, ranks: int, micro_batches: int, chunks: int = 1) -> list[Action]:
    """The actions of a rank. Raises TorchperfError with more than one chunk a rank."""
    one_chunk("1f1b", chunks)
    ahead = min(micro_batches, ranks - rank - 1)
    actions = [Action("F", j, 0) for j in range(ahead)]
    for j in range(micro_batches):
        if j + ahead < micro_batches:
            actions.append(Action("F", j + ahead, 0))
        actions.append(Action("BW", j, 0))
    return actions


def bubble(ranks: int, forward: float, backward: float, weight: float) -> float:
    """Seconds that a rank of equal stages is idle; `backward` is the whole of it."""
    return (ranks - 1) * (forward + backward)
