"""The words of a pipeline schedule: one action of a rank, and the way of a micro-batch through the chunks."""

from __future__ import annotations

from typing import NamedTuple

from ..graph.errors import TorchperfError

KINDS = ("F", "B", "W", "BW")
Route = tuple[tuple[int, int], ...]


class Action(NamedTuple):
    """What a rank does next with a micro-batch on one of its chunks.

    F forward; B backward towards the input (with what is recomputed); W backward towards the weights; BW both in one.
    """

    # A tuple and not a dataclass: a step of 64 ranks has 1e5 of them, and a tuple is made four times as fast.

    kind: str
    micro_batch: int
    chunk: int


def looped(ranks: int, chunks: int) -> tuple[Route, ...]:
    """One way: virtual stage s is chunk s // ranks of rank s % ranks."""
    return (tuple((s % ranks, s // ranks) for s in range(ranks * chunks)),)


def one_chunk(schedule: str, chunks: int, instead: str = "interleaved") -> None:
    """Raises TorchperfError where a schedule that has one chunk a rank is given more."""
    if chunks != 1:
        raise TorchperfError(
            f"the schedule `{schedule}` runs one chunk a rank, not {chunks}",
            facts=[("flag", f"--virtual-stages {chunks}")],
            hint=f"`--schedule {instead}`, or leave out `--virtual-stages`",
        )
