"""Constants of one set of collectives at a time, each from its own rows.

The formula (torchperf/price/collective.py) is linear in its constants but for the thresholds of the protocols, which
belong to the library and are the same on every link. So each set is a least absolute relative error under
constants >= 0 and share <= 1.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from torchperf.graph.system import Interconnect
from torchperf.price.collective import LEVELS, NVLS_RANKS, terms
from torchperf.price.collective import seconds as price_seconds
from torchperf.price.collective_fits import Constants
from torchperf.price.topology import Network, bandwidth, traffic
from torchperf.validate.collective_rows import Case

Array = NDArray[np.float64]
Parameters = dict[str, float]
Sets = dict[tuple[str, str], Parameters]  # (interconnect, "kind.library") -> constants

# thresholds of NCCL, the same on every link. Ring and tree go from LL to LL128 to Simple (fitted once, on all NVLink
# together); send/recv, of which an all_to_all consists, from LL to Simple per peer (NCCL_P2P_LL_THRESHOLD), and to
# more channels (fitted once)
_RING = {"switch_bytes": 16384.0, "power": 2.0, "simple_bytes": 3e6, "simple_power": 2.0}
_PEER = {"switch_bytes": 16384.0, "per_peer": 1.0, "power": 1.5}
PROTOCOL = {
    "all_reduce": _RING,
    "all_gather": _RING,
    "reduce_scatter": _RING,
    "all_to_all": {**_PEER, "simple_bytes": 8e6, "simple_power": 4.0},
    "p2p": _PEER,
}
TERMS = {
    **dict.fromkeys(
        ("all_reduce", "all_gather", "reduce_scatter"), ("alpha", "hop", "share", "copy", "switch", "simple")
    ),
    "all_to_all": ("alpha", "hop", "share", "copy", "half", "switch", "simple"),
}
SHARED_BUS = ("alpha", "hop", "share", "half")  # PCIe has no LL128, and its bus hides the other steps
P2P_GRID = np.arange(0.5, 1.51, 0.1)  # what its protocol for large messages costs against its latency
NVLS_BYTES = 4e7  # rows above it were reduced in the switch, where there is one that can
TWO_SHOT_BYTES = 512 * 1024  # custom all_reduce of more than two ranks: above it in two steps
SKEW_BYTES = 1e6  # below it ranks wait longer for each other than the bytes take
CUSTOM_BYTES = 4e6  # rows above it were left to NCCL
SWITCHED = {"nvlink3": False, "nvlink4": True, "nvlink5": True}  # whether the switch adds up (NVLS)
CUSTOM_GRID = (np.arange(0.0, 0.11, 0.01), np.arange(0.2, 1.61, 0.1), np.arange(0.4, 0.91, 0.05))
CONTENTION = tuple(np.arange(0.0, 3.01, 0.2))


def least_absolute(features: Array, seconds: Array, at_least: Array | None = None) -> Array:
    """c >= at_least that minimises sum |features c / seconds - 1|, by reweighted least squares."""
    low = np.zeros(features.shape[1]) if at_least is None else at_least
    a = features / seconds[:, None]
    scale = np.maximum(a.max(axis=0), 1e-30)
    a, rest = a / scale, 1 - (features @ low) / seconds
    weight, c = np.ones(len(seconds)), np.zeros(a.shape[1])
    for _ in range(20):
        c = _non_negative(a.T @ (a * weight[:, None]), a.T @ (weight * rest))
        weight = 1 / np.maximum(np.abs(a @ c - rest), 0.02)
    return np.asarray(low + c / scale)


def _non_negative(gram: Array, right: Array) -> Array:
    """min c'Gc/2 - r'c with c >= 0: the best of all subsets of the few constants that may be above zero."""
    size = len(right)
    inner = gram + 1e-10 * np.eye(size)
    best, least = np.linalg.solve(inner, right), 0.0
    if (best >= 0).all():
        return np.asarray(best)
    best = np.zeros(size)
    for number in range(1, size):
        for kept in itertools.combinations(range(size), number):
            c = np.linalg.solve(inner[np.ix_(kept, kept)], right[list(kept)])
            value = -0.5 * float(right[list(kept)] @ c)
            if value < least and (c >= 0).all():
                best, least = np.zeros(size), value
                best[list(kept)] = c
    return best


def _columns(rows: Sequence[Case]) -> tuple[Array, Array, Array]:
    sizes = np.array([row.nbytes for row in rows], float)
    return sizes, np.array([row.inside for row in rows], float), np.array([row.seconds for row in rows])


def _features(
    kind: str, rows: Sequence[Case], link: Interconnect, contention: float = 0.0
) -> tuple[tuple[str, ...], Array]:
    """Names and columns of the linear constants: of `share` and `copy` the inverse."""
    sizes, ranks, _ = _columns(rows)
    rate, sent = bandwidth(kind, ranks, link), traffic(kind, sizes, ranks)
    names, base, columns = _names(kind, link), {**PROTOCOL[kind], "contention": contention}, []
    for name in names:
        parts = terms(Constants(**{**base, "share": 1.0, name: 1.0}), sizes, ranks, sent, rate)
        wire = parts.pop("wire")
        columns.append(wire if name == "share" else np.asarray(sum(parts.values())))
    return names, np.stack(columns, axis=1)


def _names(kind: str, link: Interconnect) -> tuple[str, ...]:
    return SHARED_BUS if link.name.startswith("pcie") else TERMS[kind]


def _solved(names: Sequence[str], features: Array, seconds: Array) -> Parameters:
    low = np.array([1.0 if name == "share" else 0.0 for name in names])
    c = dict(zip(names, map(float, least_absolute(features, seconds, low)), strict=True))
    for name in ("share", "copy"):
        if c.get(name):
            c[name] = 1 / c[name]
    return {name: value for name, value in c.items() if value > 0}


def nccl(kind: str, rows: Sequence[Case], link: Interconnect, other: Sequence[bool]) -> tuple[Parameters, float]:
    """Constants of one link, and the launch that rows marked `other` (another host) cost beside it."""
    in_switch = [SWITCHED.get(link.name, False) and kind == "all_reduce" and row.inside >= NVLS_RANKS for row in rows]
    in_switch = [mark and row.nbytes > NVLS_BYTES for mark, row in zip(in_switch, rows, strict=True)]
    ring = [row for row, mark in zip(rows, in_switch, strict=True) if not mark]
    marks = np.array([float(o) for o, mark in zip(other, in_switch, strict=True) if not mark])
    sizes, ranks, seconds = _columns(ring)
    best: tuple[float, Parameters] | None = None
    for contention in CONTENTION if link.name.startswith("pcie") else (0.0,):
        names, features = _features(kind, ring, link, contention)
        if marks.any():
            names, features = (*names, "launch"), np.column_stack([features, marks])
        found = _solved(names, features, seconds)
        back = np.array([(1 / found[n] if n in ("share", "copy") else found[n]) if n in found else 0.0 for n in names])
        error = float(np.abs(features @ back / seconds - 1).mean())
        if best is None or error < best[0]:
            best = error, found | ({"contention": float(contention)} if contention else {})
    assert best is not None
    found = best[1] | (PROTOCOL[kind] if "switch" in _names(kind, link) else {})
    launch = found.pop("launch", 0.0)
    nvls = [row for row, mark in zip(rows, in_switch, strict=True) if mark]
    if len(nvls) >= 2:
        sizes, ranks, seconds = _columns(nvls)
        sent = traffic(kind, sizes, ranks, "nvls") / link.bandwidth.value
        hop, inverse = least_absolute(np.stack([ranks, sent], axis=1), seconds, np.array([0.0, 1.0]))
        found |= {"nvls_hop": float(hop), "nvls_share": float(1 / inverse)}
    return found, launch


def custom(sets: Mapping[tuple[str, str], Sequence[Case]], links: Mapping[str, Interconnect]) -> Sets:
    """The libraries' own all_reduce, from the rows they did not leave to NCCL.

    Few rows a set: what a further rank and the second step cost against the first, and the share, are one for all.
    """
    best: tuple[float, Sets] | None = None
    for hop, barrier, share in itertools.product(*CUSTOM_GRID):
        error, found = 0.0, Sets()
        for (name, library), rows in sets.items():
            sizes, ranks, seconds = _columns(rows)
            rate = bandwidth("all_reduce", ranks, links[name])
            steps, sent = 1 + hop * (ranks - 1), traffic("all_reduce", sizes, ranks, "one_shot")
            two = (ranks > 2) & (sizes > TWO_SHOT_BYTES)
            sent = np.where(two, traffic("all_reduce", sizes, ranks, "two_shot"), sent)
            left = np.maximum(seconds - sent / (share * rate), 0.1 * seconds)
            alpha = float(np.median(left / (steps + barrier * two)))
            error += float(np.abs((alpha * (steps + barrier * two) + sent / (share * rate)) / seconds - 1).sum())
            one = {"alpha": alpha, "hop": alpha * hop, "barrier": alpha * barrier, "share": share}
            found[name, f"all_reduce.{library}"] = one
        if best is None or error < best[0]:
            best = error, found
    assert best is not None
    return best[1]


def eager(rows: Sequence[Case], graph: Parameters, kernel: Callable[[Case], float]) -> Parameters:
    """The kernel issued by the host: its floor, and the copy into the library's buffer."""
    small = [row.seconds for row in rows if row.nbytes < CUSTOM_BYTES]
    stage = [(row.seconds - kernel(row)) / row.nbytes for row in rows if row.nbytes > CUSTOM_BYTES]
    return graph | {"host": float(np.median(small)), "stage": max(0.0, float(np.median(stage))) if stage else 0.0}


def traced(rows: Sequence[Case], base: Parameters, link: Interconnect) -> Parameters:
    """NCCL's kernel time: a wait for other ranks, as a floor, and its bytes at a pace of its own against nccl-tests."""
    sizes, ranks, seconds = _columns(rows)
    base = {name: value for name, value in base.items() if name != "contention"}
    small, large = sizes < SKEW_BYTES, sizes > CUSTOM_BYTES
    wait = float(np.median(seconds[small])) if small.any() else 0.0
    pace = 1.0
    if large.any():
        rate = bandwidth("all_reduce", ranks, link)
        expected = price_seconds(Constants(**base), "all_reduce", sizes, ranks, rate)
        pace = float(np.median((seconds / expected)[large]))
    slower = dict.fromkeys(("alpha", "hop", "half", "switch", "simple", "nvls_hop"), pace)
    slower |= dict.fromkeys(("share", "copy", "nvls_share"), 1 / pace)
    kept = {name: value * slower.get(name, 1.0) for name, value in base.items()}
    return kept | {name: min(1.0, kept[name]) for name in ("share", "nvls_share") if name in kept} | {"host": wait}


def pairs(rows: Mapping[str, Sequence[Case]], links: Mapping[str, Interconnect]) -> Sets:
    """send/recv inside a node: latency and share of each link, the cost of its protocol one ratio for all."""
    best: tuple[float, Sets] | None = None
    for ratio in P2P_GRID:
        error, found = 0.0, Sets()
        for name, own in rows.items():
            sizes, ranks, seconds = _columns(own)
            one = Constants(alpha=1.0, switch=float(ratio), **_PEER)
            parts = terms(one, sizes, ranks, sizes, bandwidth("p2p", ranks, links[name]))
            features = np.stack([parts["latency"] + parts["protocol"], parts["wire"]], axis=1)
            alpha, inverse = least_absolute(features, seconds, np.array([0.0, 1.0]))
            error += float(np.abs(features @ np.array([alpha, inverse]) / seconds - 1).sum())
            constants = {"alpha": float(alpha), "share": float(1 / inverse), "switch": float(alpha * ratio)}
            found[name, "p2p.nccl_kernel"] = constants | _PEER
        if best is None or error < best[0]:
            best = error, found
    return best[1] if best else {}


def network(kind: str, rows: Sequence[Case], outside: Interconnect, inner: Callable[[Case], float]) -> Parameters:
    """Constants of the level between nodes, once what `inner` says happens inside a node is taken off."""
    sizes, _, seconds = _columns(rows)
    inside = np.array([inner(row) for row in rows])
    left = np.maximum(seconds**LEVELS - inside**LEVELS, (0.5 * seconds) ** LEVELS) ** (1 / LEVELS)
    sent, rate = [], []
    for row in rows:
        senders = 1 if row.kind == "p2p" else row.inside
        net = Network(row.nodes, row.inside, outside.bandwidth.value, min(row.ports, senders))
        sent.append(net.traffic(kind, row.nbytes))
        rate.append(net.bandwidth)
    columns = [np.ones_like(sizes), np.array(sent) / np.array(rate), np.sqrt(sizes)][: 3 if len(rows) >= 10 else 2]
    c = least_absolute(np.stack(columns, axis=1), left, np.array([0.0, 1.0, 0.0][: len(columns)]))
    found = {"alpha": float(c[0]), "share": float(1 / c[1])}
    return found | ({"half": float(c[2])} if len(c) > 2 and c[2] > 0 else {})
