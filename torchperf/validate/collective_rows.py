"""Rows of measured collectives -> where their ranks sat, and the call that prices the same thing.

Sizes of the rows are those of nccl-tests (`price.collective`): nothing is converted but microseconds. Where a source
does not say what joins two nodes, the place below assumes it, and says so.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from ..graph.price import Price
from ..graph.system import Interconnect
from ..hardware import load_interconnect
from ..price.collective import Group, on_links
from ..price.topology import Network
from .cells import positive, whole

COLUMNS = ("source", "gpu", "topology", "op", "num_gpus", "bytes", "measured_us")


@dataclass(frozen=True, slots=True)
class Case:
    """One measured row.

    source   where it was measured, and its revision
    link     interconnect inside a node, and `inside` ranks of the group on it
    outside  interconnect between the `nodes`, of which a node has `ports`; empty for one node
    """

    source: str
    gpu: str
    library: str
    kind: str
    nbytes: int
    ranks: int
    seconds: float
    link: str
    inside: int
    outside: str = ""
    nodes: int = 1
    ports: float = 1.0


@dataclass(frozen=True, slots=True)
class _Place:
    """Rows whose GPU and topology match: the link inside, the link outside, the ports of a node."""

    gpu: str
    topology: str
    link: str
    outside: str = ""
    ports: float = 1.0


_PLACES = (
    _Place(r"A100-SXM4-80GB", "NVSwitch", "nvlink3"),
    _Place(r"H[12]00-SXM", "NVSwitch; 2 node|HGX|1 node", "nvlink4", "ib-ndr", 8),
    _Place(r"B200", "NVSwitch", "nvlink5"),
    _Place(r"GB200", "NVL72", "nvlink5-nvl72"),
    _Place(r"L40S", "PCIe4", "pcie4"),
    _Place(r"MI300X", "Infinity Fabric", "infinity-fabric"),
    # ports assumed: the rows of 8 ranks a node take no longer than those of 4
    _Place(r"A100-80GB", "DGX A100", "nvlink3", "ethernet-100g", 4),
    # the adapter of that cloud machine assumed
    _Place(r"A100-PCIe", r"1 node\(s\) x 4", "pcie4"),
    _Place(r"A100-PCIe", "pairwise", "nvlink3-bridge", "ethernet-100g"),
    _Place(r"H100-NVL", r"1 node\(s\) x 4", "pcie5"),
    _Place(r"H100-NVL", "pairwise", "nvlink4-bridge"),
    _Place(r"A100-SXM4-40GB", "4x200Gb HDR", "nvlink3", "ib-hdr", 4),
    _Place(r"A100-SXM4-40GB", "4x100Gb EFA", "nvlink3", "ethernet-100g", 4),
    _Place(r"A40", "2 nodes", "pcie4", "ib-hdr"),  # network not stated: assumed
)
Links = Mapping[str, Interconnect]
_LIBRARY = re.compile(r"custom_allreduce\[(\w+)\]")


def library_of(source: str) -> str:
    """The library, and so the clock, that a source of rows measured."""
    found = _LIBRARY.search(source)
    if found:
        return found[1].lower()
    return "nccl_kernel" if "kernel time" in source else "nccl"


def case(row: Mapping[str, str]) -> Case | str:
    """The case of a row of the file, or why it cannot be priced."""
    missing = [name for name in COLUMNS if not row.get(name)]
    if missing:
        return "no " + ", ".join(f"`{name}`" for name in missing)
    gpu, topology, ranks = row["gpu"], row["topology"], whole(row["num_gpus"], "num_gpus")
    place = next((p for p in _PLACES if re.match(p.gpu, gpu) and re.search(p.topology, topology)), None)
    if place is None:
        return f"no record of `{gpu}` on `{topology}`"
    counted = re.search(r"(\d+) node", topology)
    nodes = whole(counted[1], "topology") if counted else 1
    if ranks % nodes:
        return f"{ranks} ranks are not alike on {nodes} nodes"
    return Case(
        source=row["source"].partition(":")[0].removeprefix("github.com/").replace("@", " "),
        gpu=gpu,
        library=library_of(row["source"]),
        kind=row["op"],
        nbytes=whole(row["bytes"], "bytes"),
        ranks=ranks,
        seconds=positive(row["measured_us"], "measured_us") * 1e-6,
        link=place.link,
        inside=ranks // nodes,
        outside=place.outside if nodes > 1 else "",
        nodes=nodes,
        ports=place.ports,
    )


def links_of(names: set[str]) -> Links:
    """The interconnects of those names."""
    return {name: load_interconnect(name) for name in names}


def predict(row: Case, links: Links) -> Price:
    """Our price of a case; `links` holds the interconnects it names."""
    link = links[row.link]
    if not row.outside:
        return on_links(row.kind, row.nbytes, Group(row.inside, link), row.library)
    outside = links[row.outside]
    senders = 1 if row.kind == "p2p" else row.inside
    network = Network(row.nodes, row.inside, outside.bandwidth.value, min(row.ports, senders))
    return on_links(row.kind, row.nbytes, Group(row.inside, link, network, outside), row.library)
