"""Interleaved 1F1B: each rank has v chunks of the model, and micro-batches go through them in groups of p.

bubble   (p - 1) (f + b) with f and b of one chunk: 1/v of what 1F1B idles
holds    min(m v, 2 (p - rank - 1) + (v - 1) p + 1) pairs of micro-batch and chunk
needs    micro-batches a multiple of p (Megatron-LM takes a rest only where it is at least p, so for groups of p none)
source   Narayanan et al. 2021, arXiv 2104.04473, section 2.2.2; order of the chunks as in Megatron-LM's schedules.py
"""

from __future__ import annotations

from ...graph.errors import TorchperfError
from ..pipeline_action import Action


def order(rank: int, ranks: int, micro_batches: int, chunks: int) -> list[Action]:
    """The actions of a rank. Raises TorchperfError with one chunk, or micro-batches that are no multiple of ranks."""
    _check(ranks, micro_batches, chunks)
    total = micro_batches * chunks
    ahead = min(total, 2 * (ranks - rank - 1) + (chunks - 1) * ranks)
    place = [(k // (ranks * chunks) * ranks + k % ranks, k // ranks % chunks) for k in range(total)]
    forward = [Action("F", j, c) for j, c in place]
    backward = [Action("BW", j, chunks - 1 - c) for j, c in place]
    actions = forward[:ahead]
    for f, b in zip(forward[ahead:], backward, strict=False):
        actions += (f, b)
    return actions + backward[total - ahead :]


def bubble(ranks: int, forward: float, backward: float, weight: float) -> float:
    """Seconds that a rank of equal chunks is idle; `backward` is the whole of it, both of one chunk."""
    return (ranks - 1) * (forward + backward)


def _check(ranks: int, micro_batches: int, chunks: int) -> None:
    if chunks < 2:
        raise TorchperfError(
            "the schedule `interleaved` needs at least 2 chunks a rank",
            facts=[("flag", f"--virtual-stages {chunks}")],
            hint="`--virtual-stages 2`, or `--schedule 1f1b`",
        )
    if micro_batches % ranks:
        below, above = micro_batches // ranks * ranks, -(-micro_batches // ranks) * ranks
        near = f"{below} or {above}" if below else str(above)
        raise TorchperfError(
            f"the schedule `interleaved` needs micro-batches in groups of {ranks}, the pipeline's ranks",
            facts=[("micro-batches", str(micro_batches)), ("--pp", str(ranks))],
            hint=f"choose `--global-batch` or `--micro-batch` for {near} micro-batches, or `--schedule 1f1b`",
        )
