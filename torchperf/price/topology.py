"""What a group of ranks finds between its members: the bytes that must pass, and the bandwidth they pass at.

Shapes follow from two numbers of an interconnect, all peers together (`bandwidth`) and one peer (`pair_bandwidth`):

switched   one peer gets it all: NVSwitch, NVL72, PCIe, a network port
mesh       a link to each peer, as many links as peers or more: xGMI; a group of n uses n - 1 of them
torus      fewer links than peers: TPU, a hybrid cube; rings along each dimension, all_to_all bound by the bisection
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..graph.errors import TorchperfError
from ..graph.system import Interconnect, System

Array = NDArray[np.float64]
KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "p2p")
ALIASES = {"send": "p2p", "recv": "p2p", "send_recv": "p2p", "alltoall": "all_to_all"}


def kind_of(name: str) -> str:
    """The collective that a name means; a TorchperfError where there is none of that name."""
    kind = ALIASES.get(name, name)
    if kind not in KINDS:
        raise TorchperfError(f"no collective `{name}`", hint="choose one of " + ", ".join(f"`{k}`" for k in KINDS))
    return kind


def traffic(kind: str, nbytes: Array, ranks: Array, algorithm: str = "ring") -> Array:
    """Bytes that each rank must send, `nbytes` being the whole tensor (see `collective`).

    ring, two_shot         all_reduce 2 (n-1)/n S = reduce_scatter + all_gather, each (n-1)/n S; all_to_all (n-1)/n S;
                           broadcast S; p2p S
    tree                   all_reduce 2 S, broadcast S: the ranks inside the tree pass the whole up and down
    one_shot               all_reduce (n-1) S: every rank reads the whole of every other
    nvls                   all_reduce (1 + 1/n) S: the switch adds up and copies, so each byte leaves its rank once
                           and the finished part of each rank once more
    """
    if algorithm == "one_shot":
        return (ranks - 1) * nbytes
    if algorithm == "nvls":
        return (1 + 1 / ranks) * nbytes
    if algorithm == "tree":
        return (2 if kind == "all_reduce" else 1) * nbytes * np.ones_like(ranks)
    if kind in ("broadcast", "p2p"):
        return nbytes * np.ones_like(ranks)
    once = (ranks - 1) / ranks * nbytes
    return 2 * once if kind == "all_reduce" else once


def bandwidth(kind: str, ranks: Array, link: Interconnect) -> Array:
    """B/s per direction that one rank of a group has for this collective inside a node."""
    full, pair = link.bandwidth.value, min(link.pair_bandwidth.value, link.bandwidth.value)
    if kind == "p2p":
        return np.full_like(ranks, pair)
    mesh = np.minimum(full, pair * np.maximum(ranks - 1, 1))
    torus = dimensions(ranks, link)
    if kind != "all_to_all":
        return np.where(torus > 0, full, mesh)
    side = ranks ** (1 / np.maximum(torus, 1.0))
    bisection = 8 * pair / side * (ranks - 1) / ranks
    return np.where(torus > 0, np.minimum(full, bisection), mesh)


def dimensions(ranks: Array, link: Interconnect) -> Array:
    """Of the torus that a group forms; 0 where each rank reaches every other in one hop."""
    num_links = max(1, round(link.bandwidth.value / min(link.pair_bandwidth.value, link.bandwidth.value)))
    torus = (num_links > 1) & (ranks - 1 > num_links)
    return np.where(torus, max(1.0, num_links / 2), 0.0)


def ring_steps(ranks: Array, link: Interconnect) -> Array:
    """Steps of a ring, n - 1; on a torus the rings of its dimensions one after the other."""
    torus = dimensions(ranks, link)
    deep = np.maximum(torus, 1.0)
    return np.where(torus > 0, deep * (ranks ** (1 / deep) - 1), ranks - 1)


def tree_steps(ranks: Array) -> Array:
    """Of a double binary tree whose leaves are chains of 8, up and down; infinite below, where it is a chain itself."""
    return np.where(ranks > 8, 7 + 2 * np.log2(np.maximum(ranks, 8) / 8), np.inf)


@dataclass(frozen=True, slots=True)
class Network:
    """How a group lies on the nodes: `nodes` of them with `per_node` ranks each, and the ports that those may use.

    port         B/s per direction of one port
    ports        ports of a node that its ranks can keep busy: rails, so a rank has those of its own device
    """

    nodes: int
    per_node: int
    port: float
    ports: float

    @property
    def bandwidth(self) -> float:
        """B/s per direction into or out of one node."""
        return self.port * self.ports

    def traffic(self, kind: str, nbytes: float) -> float:
        """Bytes that leave one node: of a flat ring, the ring's; of an all_to_all, what is not for the node itself."""
        ranks = self.nodes * self.per_node
        if kind == "all_to_all":
            return self.per_node * nbytes * (ranks - self.per_node) / ranks
        return float(traffic(kind, np.array(nbytes, float), np.array(ranks, float)))


def place(system: System, ranks: int, per_node: int | None = None, kind: str = "") -> tuple[int, Network | None]:
    """(ranks inside one node, the network between nodes or None); the fullest node counts.

    per_node  ranks of the group in one node; as many as fit unless given. A p2p pair is in one node or in two.
    """
    inside = min(ranks, system.num_accelerators) if per_node is None else min(per_node, ranks)
    if inside < 1 or inside > system.num_accelerators:
        raise TorchperfError(f"`{inside}` ranks a node, but a node of `{system.name}` has {system.num_accelerators}")
    nodes = -(-ranks // inside)
    if nodes == 1:
        return inside, None
    if system.scale_out is None:
        raise TorchperfError(f"`{ranks}` ranks need {nodes} nodes, and `{system.name}` has no network")
    rails = max(1.0, system.num_nics / system.num_accelerators)
    senders = 1 if kind == "p2p" else inside
    ports = min(float(system.num_nics), senders * rails)
    return inside, Network(nodes, inside, system.scale_out.bandwidth.value, ports)
