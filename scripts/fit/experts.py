"""Constants of a mixture of experts from measured rows, one set per accelerator, over the prices of its products.

`matmul` must be fitted first: a device without such a fit is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from simplex import FOLDS, Array, Parameters, third
from simplex import fit as refine

from torchperf.graph.system import Accelerator
from torchperf.hardware import load_accelerator
from torchperf.validate.other_rows import Experts, case, experts_parts, experts_seconds

START = {"floor": 3e-5, "slow": 1.3, "e_m": 0.3}
MOST, LEAST = {"e_m": 1.0}, {"slow": 1.0}


def _fitted(products: Array, moved: Array, measured: Array) -> Parameters:
    return refine(lambda c: experts_seconds(products, moved, **c), measured, START, MOST, LEAST)[0]


def _table(device: Accelerator, cases: list[Experts]) -> dict[str, Any]:
    products, moved = np.array([experts_parts(row, device) for row in cases]).T
    measured = np.array([row.seconds for row in cases])
    thirds = np.array([third(row.hidden, row.inter, row.experts) for row in cases])
    errors = []
    for held in range(FOLDS):
        test = thirds == held
        constants = _fitted(products[~test], moved[~test], measured[~test])
        errors += np.abs(experts_seconds(products[test], moved[test], **constants) / measured[test] - 1).tolist()
    return {
        "parameters": {k: float(f"{v:.4g}") for k, v in _fitted(products, moved, measured).items()},
        "rows": f"{len(cases)} rows of aiconfigurator 095f58a5: moe_ffn",
        "range": f"{min(row.tokens for row in cases)} to {max(row.tokens for row in cases)} tokens",
        "median_error": round(float(np.median(errors)), 4),
        "p90_error": round(float(np.percentile(errors, 90)), 4),
        "source": "aiconfigurator",
        "basis": "fitted",
    }


def fit(rows: Iterable[Mapping[str, str]]) -> dict[str, dict[str, Any]]:
    """{accelerator: table of its fit `experts`}."""
    found: dict[str, list[Experts]] = {}
    for row in rows:
        one = case(row)
        if isinstance(one, Experts):
            found.setdefault(one.gpu, []).append(one)
    devices = {gpu: load_accelerator(gpu) for gpu in found}
    return {
        device.name: _table(device, found[gpu]) for gpu, device in devices.items() if device.find_fit("matmul.16bit")
    }
