"""How a measured run was split over its devices: from the columns of a row, or from the notes that aiconfigurator's
table leaves.

That table multiplies `moe_tp` by `moe_ep` into its number of GPUs. A run named tp8 ep8 has 8 GPUs: engines spread the
experts over the devices of the same group (InferenceMAX: `--tp 8 --ep-size 8` on one node of 8). With attention-DP its
`tp` is 1 and the concurrency is shared out over the devices.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from ..graph.errors import TorchperfError
from .cells import whole


@dataclass(frozen=True, slots=True)
class Degrees:
    """`clients`: requests at a time over all devices, 0 where the row's batch says it."""

    num_gpus: int
    tp: int = 1
    pp: int = 1
    ep: int = 1
    attention_dp: int = 1
    clients: int = 0
    assumptions: tuple[str, ...] = ()


def degrees_of(cells: Mapping[str, str], layout: str) -> Degrees:
    """Degrees of a row; raises TorchperfError where they contradict each other."""
    if layout == "aiconfigurator":
        return _aiconfigurator(cells)
    num_gpus, tp, pp = (whole(cells[name], name) for name in ("num_gpus", "tp", "pp"))
    if tp * pp != num_gpus:
        raise TorchperfError(f"tp {tp} x pp {pp} is not {num_gpus} GPUs")
    return Degrees(num_gpus, tp, pp)


def _aiconfigurator(cells: Mapping[str, str]) -> Degrees:
    notes = cells.get("notes", "")
    stated = whole(cells["num_gpus"], "num_gpus")
    dp, moe_tp, moe_ep = (_degree(notes, name) for name in ("dp", "moe_tp", "moe_ep"))
    clients = re.search(r"silicon_concurrency=(\d+)", notes)
    over = moe_tp * moe_ep
    if over > stated:
        raise TorchperfError(f"experts split {over} ways on {stated} GPUs: the row's degrees contradict each other")
    told: tuple[str, ...] = ()
    group = stated
    if moe_tp == moe_ep > 1 and over == stated:
        group = moe_tp
        told = (f"tp {moe_tp} with ep {moe_ep} are {group} GPUs, not their product",)
    shared = dp > 1
    return Degrees(
        num_gpus=group,
        tp=1 if shared else group // whole(cells["pp"], "pp"),
        pp=whole(cells["pp"], "pp"),
        ep=moe_ep,
        attention_dp=group if shared else 1,
        clients=int(clients[1]) if clients else whole(cells["batch"], "batch") * (group if shared else 1),
        assumptions=told,
    )


def _degree(notes: str, name: str) -> int:
    found = re.search(rf"\b{name}=(\d+)", notes)
    return max(1, int(found[1])) if found else 1
