"""How many matrix products are priced in a second on one core.

    python scripts/benchmark_prices.py

Distinct products through the vectorised function, and the same ones again through a pricer's memory. Exit code 1
where a bar is missed.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from torchperf.graph.work import Work
from torchperf.hardware import load_accelerator
from torchperf.price.matmul import Pricer, products, seconds

DISTINCT, REPEATED = 20_000, 200_000  # least prices a second
DEVICE = "h100-sxm-80gb"


def distinct(num: int = 20_000) -> float:
    """Distinct prices a second of processor time."""
    generator = np.random.default_rng(0)
    sizes = np.ceil(2 ** generator.uniform(0, 14, (3, num)))
    of = products("16bit", [np.ones(num), *sizes])
    device = load_accelerator(DEVICE)
    start = time.process_time()
    seconds(device, "16bit", of)
    return num / (time.process_time() - start)


def repeated(num: int = 400_000, shapes: int = 100) -> float:
    """Prices a second of processor time of work that was priced before."""
    pricer = Pricer(load_accelerator(DEVICE))
    works = [
        Work("matmul", "matrix", "bf16", dims=(("batch", 1), ("m", m), ("n", 4096), ("k", 4096)))
        for m in range(1, shapes + 1)
    ]
    for work in works:
        pricer(work)
    start = time.process_time()
    for _ in range(num // shapes):
        for work in works:
            pricer(work)
    return num / (time.process_time() - start)


def main() -> int:
    """Best of three of each beside its bar; 1 where one is missed."""
    found = {
        "distinct, vectorised": (max(distinct() for _ in range(3)), DISTINCT),
        "memoised": (max(repeated() for _ in range(3)), REPEATED),
    }
    for name, (rate, bar) in found.items():
        print(f"{name:22} {rate:10,.0f} a second, at least {bar:,}")
    return int(any(rate < bar for rate, bar in found.values()))


if __name__ == "__main__":
    sys.exit(main())
