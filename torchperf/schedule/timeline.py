"""One device, one stream: the host issues kernels one after the other, the device runs them in that order.

    finish_i = max(issue_i, finish_{i-1}) + duration_i      issue_i = (i + 1) * launch

In closed form finish_n = max over j of (issue_j + durations j..n), a running maximum; `slow_finish` is its twin.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class StepTime:
    """Seconds of a step: `step` is what a clock shows, `device` the sum of kernels, `host` the time to issue them."""

    step: float
    device: float
    host: float


def step_time(durations: Sequence[Sequence[float]], order: Sequence[int], launch: float) -> StepTime:
    """Time of a step. `durations[b]` are the kernels of block b in seconds, `order` the blocks in call order."""
    arrays = [np.asarray([d for d in block if d > 0.0]) for block in durations]
    kernels = np.concatenate([arrays[b] for b in order]) if order else np.zeros(0)
    if kernels.size == 0:
        return StepTime(0.0, 0.0, 0.0)
    issue = launch * np.arange(1, kernels.size + 1)
    done = np.cumsum(kernels)
    waiting = float(np.max(issue - (done - kernels)))
    return StepTime(waiting + float(done[-1]), float(done[-1]), float(issue[-1]))


def slow_finish(kernels: Sequence[float], launch: float) -> float:
    """The same, one kernel at a time."""
    finish = 0.0
    for i, duration in enumerate(kernels):
        finish = max((i + 1) * launch, finish) + duration
    return finish
