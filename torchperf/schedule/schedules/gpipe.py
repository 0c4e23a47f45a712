"""GPipe: every forward, then every backward in the opposite order of the micro-batches.

bubble   (p - 1) (f + b) of equal stages
holds    all micro-batches
source   Huang et al. 2019, arXiv 1811.06965, section 2.3
"""

from __future__ import annotations

from ..pipeline_action import Action, one_chunk


def order(rank: int, ranks: int, micro_batches: int, chunks: int = 1) -> list[Action]:
    """The actions of a rank. Raises TorchperfError with more than one chunk a rank."""
    one_chunk("gpipe", chunks)
    forward = [Action("F", j, 0) for j in range(micro_batches)]
    return forward + [Action("BW", j, 0) for j in reversed(range(micro_batches))]


def bubble(ranks: int, forward: float, backward: float, weight: float) -> float:
    """Seconds that a rank of equal stages is idle; `backward` is the whole of it."""
    return (ranks - 1) * (forward + backward)
