"""Which schedules there are, and what a rank does and holds under each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from ..graph.errors import TorchperfError
from .pipeline_action import Action, Route, looped
from .schedules import dualpipe, gpipe, interleaved, one_f_one_b, zb_h1


@dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule.

    order    (rank, ranks, micro_batches, chunks) -> actions of the rank
    bubble   (ranks, forward, backward, weight) -> idle seconds of a rank, for equal chunks
    exact    whether `bubble` holds for any seconds and any number of micro-batches
    steady   by the ranks: micro-batches after which the order repeats itself in the steady state, and from how many on
             there is one; None where the ranks keep no common pace
    routes   (ranks, chunks) -> the ways of micro-batches through (rank, chunk); a chunk lies on one of them
    """

    order: Callable[[int, int, int, int], list[Action]]
    bubble: Callable[[int, float, float, float], float]
    exact: bool
    steady: Callable[[int], tuple[int, int]] | None
    routes: Callable[[int, int], tuple[Route, ...]] = looped


SCHEDULES = {
    "gpipe": Schedule(gpipe.order, gpipe.bubble, True, None),
    "1f1b": Schedule(one_f_one_b.order, one_f_one_b.bubble, True, lambda p: (1, p + 2)),
    "interleaved": Schedule(interleaved.order, interleaved.bubble, True, lambda p: (p, 3 * p)),
    "zb-h1": Schedule(zb_h1.order, zb_h1.bubble, False, lambda p: (1, 2 * p)),
    "dualpipe": Schedule(dualpipe.order, dualpipe.bubble, False, lambda p: (2, 3 * p * p // 2), dualpipe.routes),
}


def schedule_of(name: str) -> Schedule:
    """The schedule of that name. Raises TorchperfError where there is none."""
    if name not in SCHEDULES:
        raise TorchperfError(f"unknown `--schedule {name}`", hint=f"one of {', '.join(SCHEDULES)}")
    return SCHEDULES[name]


def order(schedule: str, rank: int, ranks: int, micro_batches: int, chunks: int = 1) -> list[Action]:
    """The actions of a rank, in order. Raises TorchperfError where the schedule cannot run these numbers."""
    if ranks < 1 or micro_batches < 1 or chunks < 1 or not 0 <= rank < ranks:
        raise TorchperfError(
            "a pipeline needs at least one rank, one chunk and one micro-batch",
            facts=[("rank", f"{rank} of {ranks}"), ("micro-batches", str(micro_batches)), ("chunks", str(chunks))],
        )
    return schedule_of(schedule).order(rank, ranks, micro_batches, chunks)


@dataclass(frozen=True, slots=True)
class InFlight:
    """Micro-batches held of each chunk of a rank at its worst moment.

    forward   ran forward, and no backward yet: the activations whole
    weight    ran backward towards the input, and not towards the weights: what that part still needs
    """

    forward: tuple[int, ...]
    weight: tuple[int, ...]

    @property
    def total(self) -> int:
        """Pairs of micro-batch and chunk whose activations are held whole."""
        return sum(self.forward)


@lru_cache(maxsize=4096)
def in_flight(
    schedule: str,
    rank: int,
    ranks: int,
    micro_batches: int,
    chunks: int = 1,
    nbytes: tuple[float, ...] = (),
    nbytes_weight: tuple[float, ...] = (),
) -> InFlight:
    """What a rank holds at its worst moment: forwards begun less backwards done, counted along its order.

    nbytes         bytes of one micro-batch on each chunk, by which the worst moment is found; () for equal chunks
    nbytes_weight  of these, what stays for the weights' part after the backward towards the input; () for none
    """
    whole = nbytes or (1.0,) * chunks
    part = nbytes_weight or (0.0,) * chunks
    forward, weight = [0] * chunks, [0] * chunks
    worst, held = -1.0, InFlight((0,) * chunks, (0,) * chunks)
    for kind, _, chunk in order(schedule, rank, ranks, micro_batches, chunks):
        if kind == "F":
            forward[chunk] += 1
            now = _weighed(forward, whole) + _weighed(weight, part)
            if now > worst:
                worst, held = now, InFlight(tuple(forward), tuple(weight))
        elif kind == "W":
            weight[chunk] -= 1
        else:
            forward[chunk] -= 1
            weight[chunk] += kind == "B"
    return held


def _weighed(count: Sequence[int], nbytes: Sequence[float]) -> float:
    return sum(n * b for n, b in zip(count, nbytes, strict=True))
