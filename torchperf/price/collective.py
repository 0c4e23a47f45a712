"""What a collective costs: latency that grows with the ranks, bytes over links, and the ramp to full bandwidth.

seconds = alpha + hop (n - 1)                              launch and steps
        + w (n/2)^contention / (share B)                   w bytes that each rank must send (topology.traffic)
        + S / copy                                         each byte once through the rank's own memory
        + half sqrt(S)                                     = w / (share B) sqrt(s0 / S): ramp with half-full size s0
        + switch x / (1 + x), x = (S / S1)^power           hand-shakes of the next protocol (LL to LL128 or Simple)
        + simple y / (1 + y), y = (S / S2)^power           the same of the protocol for large messages (Simple)

S is the whole tensor, n the ranks, B the bandwidth per direction of one rank. Algorithms of a library are joined by
a smooth minimum, (a^-16 + b^-16)^(-1/16), never below the least time of any of them on the wire.

ignores  other traffic on the same links, slow ranks, which device sits where
error    median 3 to 5 %, p90 12 to 18 % on NVSwitch, held-out rows; each fit states its own
source   [aiconfigurator] nccl-tests and custom all-reduce, [vidur] kernel times
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from ..graph.errors import TorchperfError
from ..graph.price import Price, Term
from ..graph.system import Interconnect, System
from .collective_fits import Constants, Found, constants_of
from .topology import Array, Network, bandwidth, kind_of, place, ring_steps, traffic, tree_steps

NOTHING = Price(0.0, "none")
ALGORITHMS = ("auto", "ring", "tree", "nvls", "one_shot", "two_shot")
SHARPNESS = 16.0  # of the smooth minimum between algorithms: 4 % off at a tie, under 1 % where they differ by a tenth
LEVELS = 4.0  # of the smooth maximum between what is inside a node and the network: they run as one pipeline
NVLS_RANKS = 8  # the library keeps to the ring below: measured with 4 and 8 ranks, assumed between
FORMULAS = {
    "latency": "alpha + hop steps",
    "wire": "w crowd^contention / (share B)",
    "copy": "S / copy",
    "ramp": "half sqrt(S)",
    "protocol": "switch x / (1 + x) + simple y / (1 + y)",
}

OWN_FORMULAS = {  # of an algorithm, where they differ
    "nvls: latency": "nvls_hop n",
    "nvls: wire": "w / (nvls_share B)",
    "two_shot: latency": "alpha + hop steps + barrier",
}


def terms(
    c: Constants, nbytes: Array, ranks: Array, sent: Array, rate: Array, steps: Array | None = None
) -> dict[str, Array]:
    """The terms of the formula by name, in seconds: `sent` bytes per rank at `rate` B/s, after `steps` (n - 1) hops."""
    one = np.ones_like(nbytes * ranks)
    x = (nbytes / (c.switch_bytes * ranks**c.per_peer)) ** c.power
    y = (nbytes / c.simple_bytes) ** c.simple_power
    return {
        "latency": (c.alpha + c.hop * (ranks - 1 if steps is None else steps)) * one,
        "wire": sent * np.maximum(ranks / 2, 1) ** c.contention / (c.share * rate),
        "copy": nbytes / c.copy * one if c.copy else 0 * one,
        "ramp": c.half * np.sqrt(nbytes) * one,
        "protocol": (c.switch * x / (1 + x) + c.simple * y / (1 + y)) * one,
    }


def given(
    c: Constants, nbytes: float, ranks: float, sent: float, rate: float, steps: float
) -> dict[str, tuple[tuple[str, float], ...]]:
    """The numbers in the formula of each term; `crowd` is n/2, at least 1."""
    x = (nbytes / (c.switch_bytes * ranks**c.per_peer)) ** c.power
    y = (nbytes / c.simple_bytes) ** c.simple_power
    latency = (("alpha", c.alpha), ("hop", c.hop), ("steps", steps), ("n", ranks), ("nvls_hop", c.nvls_hop),
               ("barrier", c.barrier))  # fmt: skip
    crowd = ("crowd", max(ranks / 2, 1.0))
    wire = (("w", sent), crowd, ("contention", c.contention), ("share", c.share), ("nvls_share", c.nvls_share))
    return {
        "latency": latency,
        "wire": (*wire, ("B", rate)),
        "copy": (("S", nbytes), ("copy", c.copy)),
        "ramp": (("half", c.half), ("S", nbytes)),
        "protocol": (("switch", c.switch), ("x", x), ("simple", c.simple), ("y", y)),
    }


def smooth_min(*times: Array) -> Array:
    """(a^-16 + b^-16 + ...)^(-1/16), scaled so that nothing overflows."""
    least = np.minimum.reduce(times)
    total = sum(((least / np.maximum(time, 1e-30)) ** SHARPNESS for time in times), np.zeros_like(least))
    return np.asarray(least * total ** (-1 / SHARPNESS))


def algorithms(
    c: Constants, kind: str, nbytes: Array, ranks: Array, rate: Array, steps: Array | None = None
) -> dict[str, dict[str, Array]]:
    """The terms of each algorithm that these constants know, by its name; infinite where it does not apply."""

    def of(name: str, hops: Array | None = steps) -> dict[str, Array]:
        return terms(c, nbytes, ranks, traffic(kind, nbytes, ranks, name), rate, hops)

    ring = of("ring")
    if c.barrier:
        return {"one_shot": of("one_shot"), "two_shot": ring | {"latency": ring["latency"] + c.barrier}}
    found = {"ring": ring}
    if kind in ("all_reduce", "broadcast"):
        hops = np.where(np.isfinite(tree_steps(ranks)), tree_steps(ranks), 0)
        tree = of("tree", hops)
        found["tree"] = tree | {"latency": np.where(ranks > 8, tree["latency"], np.inf)}
    if kind == "all_reduce" and c.nvls_share:
        sent = traffic(kind, nbytes, ranks, "nvls")
        latency = np.where(ranks >= NVLS_RANKS, c.nvls_hop * ranks * np.ones_like(nbytes), np.inf)
        found["nvls"] = {"latency": latency, "wire": sent / (c.nvls_share * rate)}
    return found


def seconds(
    c: Constants,
    kind: str,
    nbytes: Array,
    ranks: Array,
    rate: Array,
    *,
    steps: Array | None = None,
    fallback: tuple[Constants, ...] = (),
    algorithm: str = "auto",
) -> Array:
    """Seconds of a collective inside one node: arrays of sizes, ranks and B/s in, array of seconds out.

    nbytes    as for `collective`
    rate      B/s per direction of one rank, `topology.bandwidth`
    steps     hops of a ring, `topology.steps`
    fallback  constants of the library that this one leaves large messages to
    """
    found, least = [], []
    for constants in (c, *fallback):
        for name, parts in algorithms(constants, kind, nbytes, ranks, rate, steps).items():
            if algorithm in ("auto", name):
                found.append(sum(parts.values(), np.zeros_like(nbytes * ranks)))
                least.append(np.where(np.isfinite(found[-1]), traffic(kind, nbytes, ranks, name) / rate, np.inf))
    if not found:
        raise TorchperfError(f"no algorithm `{algorithm}` of `{kind}` here", hint="leave it to `auto`")
    kernel = np.maximum(smooth_min(*found), np.minimum.reduce(least))
    kernel = kernel + c.stage * nbytes
    return np.asarray((kernel**SHARPNESS + c.host**SHARPNESS) ** (1 / SHARPNESS)) if c.host else kernel


def across(c: Constants, kind: str, nbytes: float, network: Network, algorithm: str = "auto") -> dict[str, Array]:
    """The terms of the quicker of ring and tree between nodes; a tree has 2 log2(nodes) steps, a ring nodes - 1."""
    return _across(c, kind, nbytes, network, algorithm)[0]


def _across(
    c: Constants, kind: str, nbytes: float, network: Network, algorithm: str
) -> tuple[dict[str, Array], dict[str, tuple[tuple[str, float], ...]]]:
    """The terms, and the numbers in them."""
    size, nodes, rate = np.array(nbytes, float), np.array(float(network.nodes)), np.array(network.bandwidth)
    sent = network.traffic(kind, nbytes)
    ring = terms(c, size, nodes, np.array(sent), rate)
    of_ring = given(c, nbytes, float(nodes), sent, network.bandwidth, network.nodes - 1.0)
    if kind not in ("all_reduce", "broadcast") or algorithm == "ring":
        return ring, of_ring
    sent = float((2 if kind == "all_reduce" else 1) * nbytes)
    hops = float(2 * np.log2(nodes))
    tree = terms(c, size, nodes, np.array(sent), rate, np.array(hops))
    if algorithm == "tree" or sum(tree.values()) < sum(ring.values()):
        return tree, given(c, nbytes, float(nodes), sent, network.bandwidth, hops)
    return ring, of_ring


@dataclass(frozen=True, slots=True)
class Group:
    """Where the ranks sit: `inside` of them on `link`, and `network` nodes of those on `outside`."""

    inside: int
    link: Interconnect | None
    network: Network | None = None
    outside: Interconnect | None = None
    rate: float | None = None  # B/s per direction of one rank, where it is not the link's own


def on_links(kind: str, nbytes: float, group: Group, library: str = "nccl", algorithm: str = "auto") -> Price:
    """Device time of one collective of `group`; see `collective`."""
    levels: list[tuple[float, list[Term], float]] = []
    if group.inside > 1 and group.link is not None and not (kind == "p2p" and group.network):
        levels.append(_inside(kind, nbytes, group, library, algorithm))
    if group.network is not None and group.outside is not None:
        found = constants_of(group.outside, kind, library, group.network.nodes)
        parts, known = _across(found.constants, kind, nbytes, group.network, algorithm)
        levels.append(_level(f"{group.outside.name}: ", parts, found, known))
    if not levels:
        return NOTHING
    total = float(sum(level[0] ** LEVELS for level in levels) ** (1 / LEVELS))
    slowest = max(levels, key=lambda level: level[0])
    bound = "launch" if slowest[2] > slowest[0] / 2 else "network"
    listed = tuple(term for level in levels for term in level[1])
    rest = total - sum(term.seconds for term in listed)
    if abs(rest) > 1e-12:
        text = "(inside^4 + network^4)^(1/4)" if len(levels) > 1 else "smooth minimum of the algorithms"
        listed += (Term("join", rest, text),)
    return Price(total, bound, listed)


def _level(
    prefix: str, parts: dict[str, Array], found: Found, known: dict[str, tuple[tuple[str, float], ...]]
) -> tuple[float, list[Term], float]:
    """Seconds, terms and latency of one level."""
    kept = {name: float(value) for name, value in parts.items() if value > 0}
    listed = [
        _term(prefix + name, value, OWN_FORMULAS.get(prefix + name, FORMULAS[name]), found, known[name])
        for name, value in kept.items()
    ]
    return sum(kept.values()), listed, sum(kept.get(name, 0.0) for name in ("latency", "protocol"))


def _term(name: str, value: float, formula: str, found: Found, known: tuple[tuple[str, float], ...]) -> Term:
    """A term with those numbers that its formula names."""
    symbols = set(re.findall(r"[A-Za-z_]\w*", formula))
    return Term(name, value, formula, found.sources, tuple(one for one in known if one[0] in symbols), found.records)


def _inside(kind: str, nbytes: float, group: Group, library: str, algorithm: str) -> tuple[float, list[Term], float]:
    assert group.link is not None
    size, ranks = np.array([nbytes], float), np.array([float(group.inside)])
    rate = bandwidth(kind, ranks, group.link) if group.rate is None else np.array([group.rate])
    own = constants_of(group.link, kind, library, group.inside)
    chain = (own, *((constants_of(group.link, kind, "nccl", group.inside),) if own.constants.barrier else ()))
    inner = "ring" if algorithm == "tree" and group.inside <= 8 else algorithm  # a small tree is a chain
    hops = ring_steps(ranks, group.link)
    total = seconds(
        own.constants,
        kind,
        size,
        ranks,
        rate,
        steps=hops,
        fallback=tuple(f.constants for f in chain[1:]),
        algorithm=inner,
    )[0]
    best: tuple[float, list[Term], float] | None = None
    for found in chain:
        for name, parts in algorithms(found.constants, kind, size, ranks, rate, hops).items():
            steps = tree_steps(ranks) if name == "tree" else hops
            sent = float(traffic(kind, size, ranks, name)[0])
            known = given(found.constants, nbytes, float(ranks[0]), sent, float(rate[0]), float(steps[0]))
            level = _level(f"{name}: ", {key: value[0] for key, value in parts.items()}, found, known)
            if inner in ("auto", name) and (best is None or level[0] < best[0]):
                best = level
    assert best is not None
    return float(total), best[1], max(best[2], min(own.constants.host, float(total)))


def collective(
    kind: str,
    nbytes: float,
    ranks: int,
    system: System,
    *,
    library: str = "nccl",
    algorithm: str = "auto",
    per_node: int | None = None,
) -> Price:
    """Device time of one collective over `ranks` devices of `system`.

    kind       all_reduce | all_gather | reduce_scatter | all_to_all | broadcast | send | recv | p2p
    nbytes     the whole tensor, as the size of nccl-tests: all_reduce and broadcast what each rank holds; all_gather
               what each rank ends with; reduce_scatter what each begins with; all_to_all what each sends to all,
               itself included; send/recv the message
    library    nccl (nccl-tests, launch and skew included) | nccl_kernel (time in a trace) | vllm_graph | vllm_eager |
               trtllm (their own all_reduce, inside a node); another kind or level falls back to nccl
    algorithm  auto | ring | tree | nvls | one_shot | two_shot
    per_node   ranks of the group in one node; as many as fit unless given
    bound      launch where latency is more than half of the slowest level, else network

    Raises TorchperfError for an unknown kind, an algorithm that the link lacks, or a group that does not fit.
    """
    kind = kind_of(kind)
    if algorithm not in ALGORITHMS:
        raise TorchperfError(
            f"no algorithm `{algorithm}`", hint="choose one of " + ", ".join(f"`{a}`" for a in ALGORITHMS)
        )
    if ranks < 2 or nbytes <= 0:
        return NOTHING
    inside, network = place(system, ranks, per_node, kind)
    if inside > 1 and system.scale_up is None:
        raise TorchperfError(f"`{system.name}` has no link between its devices")
    return on_links(kind, nbytes, Group(inside, system.scale_up, network, system.scale_out), library, algorithm)
