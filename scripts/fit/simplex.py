"""Few positive constants fitted to measured times: robust, and drawn towards where they start.

minimise over x in log space   mean sqrt(r^2 + 0.05^2) + PULL / rows * sum (x - x0)^2,   r = log(predicted / measured)

The square root turns from least squares to least absolute error at 5 %. The pull is that of a prior: constants that
the rows do not tell stay where they were. Nelder-Mead: a handful of constants, no derivatives.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Parameters = dict[str, float]
PULL = 0.5
KNEE = 0.05
FOLDS = 3


def third(*shape: object) -> int:
    """Which third of the rows those of a shape fall in."""
    return int(hashlib.sha256(",".join(map(str, shape)).encode()).hexdigest(), 16) % FOLDS


def nelder_mead(loss: Callable[[Array], float], start: Array, step: float, rounds: int = 500) -> tuple[Array, float]:
    """The best point found and its loss."""
    points = np.vstack([start, start + step * np.eye(len(start))])
    values = np.array([loss(point) for point in points])
    for _ in range(rounds):
        order = np.argsort(values)
        points, values = points[order], values[order]
        if values[-1] - values[0] < 1e-5 * abs(values[0]) and np.abs(points - points[0]).max() < 1e-2:
            break
        middle = points[:-1].mean(axis=0)
        step_out = middle - points[-1]
        near = middle + step_out
        value = loss(near)
        if value < values[0]:
            far = middle + 2 * step_out
            further = loss(far)
            points[-1], values[-1] = (far, further) if further < value else (near, value)
        elif value < values[-2]:
            points[-1], values[-1] = near, value
        else:
            inner = middle - 0.5 * step_out
            closer = loss(inner)
            if closer < values[-1]:
                points[-1], values[-1] = inner, closer
            else:
                points[1:] = points[0] + 0.5 * (points[1:] - points[0])
                values[1:] = [loss(point) for point in points[1:]]
    best = int(np.argmin(values))
    return points[best], float(values[best])


def fit(
    predict: Callable[[Parameters], Array],
    measured: Array,
    start: Mapping[str, float],
    most: Mapping[str, float],
    least: Mapping[str, float],
) -> tuple[Parameters, float]:
    """The constants of `start` refined, none above `most` or below `least`, and the loss."""
    names = list(start)
    origin = np.log([start[name] for name in names])
    low = np.log([least.get(name, 1e-12) for name in names])
    high = np.log([most.get(name, 1e12) for name in names])

    def parameters(x: Array) -> Parameters:
        return dict(zip(names, np.exp(np.clip(x, low, high)).tolist(), strict=True))

    def loss(x: Array) -> float:
        r = np.log(predict(parameters(x)) / measured)
        return float(np.mean(np.sqrt(r * r + KNEE**2)) + PULL / len(r) * np.sum((x - origin) ** 2))

    x, value = origin, np.inf
    for step in (0.4, 0.2):
        x, value = nelder_mead(loss, x, step)
    return parameters(x), value
