"""One stream: the closed form of the step's time, against its slow twin and its bounds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchperf.schedule.timeline import slow_finish, step_time

seconds = st.floats(0.0, 1.0, allow_nan=False).map(lambda t: 0.0 if t < 1e-9 else t)
blocks = st.lists(st.lists(seconds, max_size=8), min_size=1, max_size=4)


@st.composite
def programs(draw: st.DrawFn) -> tuple[list[list[float]], list[int], float]:
    """Durations of each block, the order in which blocks run, and the time to launch a kernel."""
    durations = draw(blocks)
    order = draw(st.lists(st.integers(0, len(durations) - 1), max_size=12))
    return durations, order, draw(st.floats(0.0, 0.5))


@given(programs())
def test_closed_form_equals_slow_twin(case: tuple[list[list[float]], list[int], float]) -> None:
    durations, order, launch = case
    kernels = [t for block in order for t in durations[block] if t > 0.0]  # a view launches nothing
    assert step_time(durations, order, launch).step == pytest.approx(slow_finish(kernels, launch), rel=1e-9)


@given(programs())
def test_bounds(case: tuple[list[list[float]], list[int], float]) -> None:
    """A step is no shorter than its kernels or its launches, and no longer than both in a row."""
    durations, order, launch = case
    time = step_time(durations, order, launch)
    assert max(time.device, time.host) <= time.step * (1 + 1e-9)
    assert time.step <= (time.device + time.host) * (1 + 1e-9)


@given(programs())
def test_without_launches_the_step_is_the_device(case: tuple[list[list[float]], list[int], float]) -> None:
    durations, order, _ = case
    time = step_time(durations, order, 0.0)
    assert time.step == pytest.approx(time.device, rel=1e-9)
    assert time.host == 0.0


@given(programs(), st.integers(0, 3), st.integers(0, 7), st.floats(0.001, 1.0))
def test_no_kernel_made_longer_shortens_the_step(
    case: tuple[list[list[float]], list[int], float], block: int, kernel: int, more: float
) -> None:
    durations, order, launch = case
    before = step_time(durations, order, launch).step
    longer = [list(row) for row in durations]
    if block < len(longer) and kernel < len(longer[block]) and longer[block][kernel] > 0.0:
        longer[block][kernel] += more
    assert step_time(longer, order, launch).step >= before * (1 - 1e-9)


def test_nothing_takes_no_time() -> None:
    assert step_time([[0.0]], [0, 0], 1.0).step == 0.0
    assert step_time([], [], 1.0).step == 0.0
