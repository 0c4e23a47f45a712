"""How much of a kernel's traffic the L2 serves, where the same tensors are used again and again.

share = 1 / (1 + (bytes / L2)^8)

ignores  what else passes through the L2 in between
source   assumed: one sharpness for every device
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

SHARPNESS = 8  # how sharply a set of tensors stops fitting


def residence(nbytes: NDArray[np.float64], l2: float, resident: bool) -> NDArray[np.float64]:
    """Share of the traffic of `nbytes` that an L2 of `l2` bytes serves; 0 where nothing is used again."""
    return 1.0 / (1.0 + (nbytes / l2) ** SHARPNESS) if resident else np.zeros_like(nbytes)
