"""GPipe's time: two flow shops, one of all the forwards and one of all the backwards.

    end_j = max(end_{j-1} + hold, arrival_j) + seconds     j the micro-batches, in the order in which a rank runs them

is a running maximum, so a rank costs a few array operations. A rank may run ahead of the next without limit, so there
is no steady state of all ranks to continue.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Stage:
    """Seconds of one rank: of an action of each direction, and of the transfer over the boundary behind it."""

    forward: float
    backward: float
    send: float
    head: float
    tail: float


def gpipe_finish(stages: list[Stage], micro_batches: int, overlap: bool) -> float:
    """When the last rank ends, in seconds: as the graph of levels says, in a time that is linear in the ranks."""
    made = np.zeros(0)
    free: list[float] = []  # when the last action of each rank ended
    for s, stage in enumerate(stages):
        came = stages[s - 1].send if s else 0.0
        left = stage.send if s + 1 < len(stages) else 0.0
        arrival = _carried(made, came, overlap) if s else np.full(micro_batches, -np.inf)
        hold = 0.0 if overlap else max(came, left)
        made = _served(arrival, stage.forward, hold, stage.head + (0.0 if overlap else came))
        free.append(float(made[-1]))
    ends = []
    for s in reversed(range(len(stages))):
        stage, last = stages[s], s + 1 == len(stages)
        came = 0.0 if last else stage.send
        left = stages[s - 1].send if s else 0.0
        arrival = np.full(micro_batches, -np.inf) if last else _carried(made, came, overlap)
        hold = 0.0 if overlap else max(came, left)
        made = _served(arrival, stage.backward, hold, free[s] + (0.0 if overlap else came))
        ends.append(float(made[-1]) + (0.0 if overlap else left) + stage.tail)
    return max(ends)


def _served(arrival: Floats, seconds: float, hold: float, begin: float) -> Floats:
    """Ends of actions of equal seconds, one after the other, `hold` between them, none before `begin`."""
    step = np.arange(arrival.size) * (seconds + hold)
    ends: Floats = np.maximum.accumulate(np.maximum(arrival, begin) - step) + step + seconds
    return ends


def _carried(made: Floats, seconds: float, overlap: bool) -> Floats:
    """When transfers arrive; with overlap each waits for the one before."""
    return _served(made, seconds, 0.0, -np.inf) if overlap and seconds else made + seconds
