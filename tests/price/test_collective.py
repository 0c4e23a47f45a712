"""Laws of the prices of collectives, and the formula against a plain one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchperf.graph.errors import TorchperfError
from torchperf.graph.system import Fit, System
from torchperf.hardware import load_system
from torchperf.price.collective import Group, algorithms, collective, on_links, seconds, smooth_min, terms
from torchperf.price.collective_fits import LIBRARIES, Constants, constants_of
from torchperf.price.topology import KINDS, bandwidth, place, ring_steps, traffic
from torchperf.validate.collective_rows import Case, case, library_of

NAMES = (
    "dgx-a100-80gb", "dgx-h100", "dgx-b200", "gb200-nvl72", "l40s-8gpu", "mi300x-8gpu", "tpu-v5p-pod", "dgx-1-v100",
)  # fmt: skip
SYSTEMS = {name: load_system(name) for name in NAMES}

systems = st.sampled_from(NAMES).map(SYSTEMS.__getitem__)
kinds = st.sampled_from(KINDS)
libraries = st.sampled_from(LIBRARIES)
sizes = st.integers(1, 2**34)


def inside(system: System) -> int:
    return min(system.num_accelerators, 72)


def faster(system: System, factor: float) -> System:
    assert system.scale_up is not None
    link = system.scale_up
    wide, pair = (replace(x, value=x.value * factor) for x in (link.bandwidth, link.pair_bandwidth))
    return replace(system, scale_up=replace(link, bandwidth=wide, pair_bandwidth=pair))


def one(value: float) -> np.ndarray:
    return np.array([float(value)])


@given(size=sizes, ranks=st.integers(2, 10_000))
def test_all_reduce_moves_what_reduce_scatter_and_all_gather_move(size: int, ranks: int) -> None:
    moved = {kind: traffic(kind, one(size), one(ranks))[0] for kind in KINDS}
    assert moved["all_reduce"] == pytest.approx(moved["reduce_scatter"] + moved["all_gather"])
    assert moved["all_to_all"] == moved["all_gather"]


@given(system=systems, kind=kinds, library=libraries, size=sizes, more=st.floats(1, 64), data=st.data())
def test_a_price_never_falls_when_bytes_grow(
    system: System, kind: str, library: str, size: int, more: float, data: st.DataObject
) -> None:
    ranks = data.draw(st.integers(2, inside(system)))
    low, high = (collective(kind, b, ranks, system, library=library).seconds for b in (size, size * more))
    assert high >= low * (1 - 1e-12)


@given(system=systems, kind=st.sampled_from([k for k in KINDS if k != "p2p"]), size=sizes, data=st.data())
def test_a_price_never_falls_when_ranks_grow_at_fixed_bytes_of_each(
    system: System, kind: str, size: int, data: st.DataObject
) -> None:
    """Bytes of each: of one pair in an all_to_all. NVLS, from 8 ranks on, is quicker than a ring of 4: not compared."""
    few = data.draw(st.integers(2, inside(system) - 1))
    many = data.draw(st.integers(few + 1, inside(system)))
    scale = {"all_reduce": 0, "broadcast": 0}.get(kind, 1)
    assert system.scale_up is not None
    if system.scale_up.pair_bandwidth.value < system.scale_up.bandwidth.value:
        return  # more ranks bring more links into play
    nvls = constants_of(system.scale_up, kind, "nccl", many).constants.nvls_share > 0
    algorithm = "ring" if nvls else "auto"
    low, high = (collective(kind, size * n**scale, n, system, algorithm=algorithm).seconds for n in (few, many))
    assert high >= low * (1 - 1e-12)


@given(system=systems, kind=kinds, library=libraries, size=sizes, data=st.data())
def test_a_price_is_at_least_its_bytes_over_the_links(
    system: System, kind: str, library: str, size: int, data: st.DataObject
) -> None:
    ranks = 2 if kind == "p2p" else data.draw(st.integers(2, inside(system)))
    assert system.scale_up is not None
    rate = bandwidth(kind, one(ranks), system.scale_up)
    found = constants_of(system.scale_up, kind, library, ranks).constants
    names = [n for n, parts in algorithms(found, kind, one(size), one(ranks), rate).items()]
    names += ["nvls"] if constants_of(system.scale_up, kind, "nccl", ranks).constants.nvls_share else []
    least = min(float((traffic(kind, one(size), one(ranks), name) / rate)[0]) for name in names)
    assert collective(kind, size, ranks, system, library=library).seconds >= least * (1 - 1e-12)


@given(system=systems, kind=kinds, library=libraries, size=sizes, factor=st.floats(1, 16), data=st.data())
def test_a_price_never_rises_when_bandwidth_rises(
    system: System, kind: str, library: str, size: int, factor: float, data: st.DataObject
) -> None:
    ranks = data.draw(st.integers(2, inside(system)))
    slow, fast = (collective(kind, size, ranks, s, library=library).seconds for s in (system, faster(system, factor)))
    assert fast <= slow * (1 + 1e-12)


@given(system=systems, kind=kinds, library=libraries, size=st.integers(1024, 2**34), data=st.data())
def test_a_price_is_continuous_in_bytes(
    system: System, kind: str, library: str, size: int, data: st.DataObject
) -> None:
    ranks = data.draw(st.integers(2, inside(system)))
    here, there = (collective(kind, b, ranks, system, library=library).seconds for b in (size, size * 1.0001))
    assert there == pytest.approx(here, rel=1e-3)


@given(kind=kinds, size=sizes, nodes=st.integers(2, 16), more=st.floats(1, 16))
def test_between_nodes_a_price_never_falls_when_bytes_or_nodes_grow(
    kind: str, size: int, nodes: int, more: float
) -> None:
    system = SYSTEMS["dgx-h100"]
    ranks = [2, 2] if kind == "p2p" else [8 * nodes, 8 * (nodes + 1)]
    per_node = 1 if kind == "p2p" else 8
    scale = {"all_reduce": 0, "broadcast": 0, "p2p": 0}.get(kind, 1)
    base = collective(kind, size * ranks[0] ** scale, ranks[0], system, per_node=per_node)
    assert (
        collective(kind, size * ranks[0] ** scale * more, ranks[0], system, per_node=per_node).seconds >= base.seconds
    )
    grown = collective(kind, size * ranks[1] ** scale, ranks[1], system, per_node=per_node)
    assert grown.seconds >= base.seconds * (1 - 1e-12)


@given(system=systems, kind=kinds, library=libraries, size=sizes, data=st.data())
def test_terms_add_up_and_name_their_sources(
    system: System, kind: str, library: str, size: int, data: st.DataObject
) -> None:
    ranks = data.draw(st.integers(2, inside(system)))
    price = collective(kind, size, ranks, system, library=library)
    assert sum(term.seconds for term in price.terms) == pytest.approx(price.seconds, rel=1e-6, abs=1e-11)
    assert price.bound in ("network", "launch")
    assert all(term.formula for term in price.terms)
    assert any(term.sources for term in price.terms)


def test_arrays_and_the_price_of_one_agree() -> None:
    system = SYSTEMS["dgx-h100"]
    link = system.scale_up
    assert link is not None
    sizes_, ranks = np.geomspace(256, 2**33, 40), np.resize([2.0, 4.0, 8.0], 40)
    found = constants_of(link, "all_reduce", "nccl", 8).constants
    many = seconds(
        found, "all_reduce", sizes_, ranks, bandwidth("all_reduce", ranks, link), steps=ring_steps(ranks, link)
    )
    each = [collective("all_reduce", float(b), int(n), system).seconds for b, n in zip(sizes_, ranks, strict=True)]
    assert many == pytest.approx(each)


def test_a_plain_ring_written_out() -> None:
    """Each of 2 (n - 1) steps sends S / n over the link; no other constant than a hop and a share."""
    hop, share, rate, size, n = 1e-6, 0.8, 300e9, 8e6, 8
    by_step = sum(size / n / (share * rate) for _ in range(2 * (n - 1)))
    c = Constants(hop=hop, share=share)
    parts = terms(c, one(size), one(n), traffic("all_reduce", one(size), one(n)), one(rate))
    assert parts["wire"][0] == pytest.approx(by_step)
    assert parts["latency"][0] == pytest.approx(hop * (n - 1))
    assert seconds(c, "all_reduce", one(size), one(n), one(rate))[0] == pytest.approx(by_step + hop * (n - 1))


def test_the_smooth_minimum_is_below_and_near_the_minimum() -> None:
    assert smooth_min(one(1.0), one(2.0))[0] == pytest.approx(1.0, rel=1e-4)
    assert 0.95 < smooth_min(one(1.0), one(1.0))[0] <= 1.0
    assert smooth_min(one(1.0), one(np.inf))[0] == 1.0


def test_a_custom_all_reduce_is_quicker_for_small_messages_and_nccl_for_large() -> None:
    system = SYSTEMS["dgx-h100"]
    small, large = 16 * 1024, 2**28
    for library in ("vllm_graph", "trtllm"):
        assert collective("all_reduce", small, 8, system, library=library).seconds < 8e-6
        own, nccl = (collective("all_reduce", large, 8, system, library=x).seconds for x in (library, "nccl"))
        assert own == pytest.approx(nccl, rel=0.02)
    assert collective("all_reduce", small, 8, system).seconds > 12e-6


def test_the_switch_adds_up_large_messages_of_eight_on_hopper_and_not_on_ampere() -> None:
    ring, auto = (
        collective("all_reduce", 2**29, 8, SYSTEMS["dgx-h100"], algorithm=a).seconds for a in ("ring", "auto")
    )
    assert auto < 0.9 * ring
    with pytest.raises(TorchperfError, match="no algorithm `nvls`"):
        collective("all_reduce", 2**29, 8, SYSTEMS["dgx-a100-80gb"], algorithm="nvls")


def test_pairs_of_a_mesh_have_one_link_and_a_torus_its_bisection() -> None:
    mesh, torus = SYSTEMS["mi300x-8gpu"].scale_up, SYSTEMS["tpu-v5p-pod"].scale_up
    assert mesh is not None
    assert torus is not None
    assert bandwidth("p2p", one(2), mesh)[0] == mesh.pair_bandwidth.value
    assert bandwidth("all_to_all", one(8), mesh)[0] == pytest.approx(7 * mesh.pair_bandwidth.value)
    assert bandwidth("all_reduce", one(4), mesh)[0] == pytest.approx(3 * mesh.pair_bandwidth.value)
    # 8 x 8 x 8: a quarter of the tensor of each rank crosses 2 x 64 links one way
    size, ranks = 1e9, 512
    crossing = ranks * size / 4 / (2 * 64 * torus.pair_bandwidth.value)
    sent = traffic("all_to_all", one(size), one(ranks)) / bandwidth("all_to_all", one(ranks), torus)
    assert sent[0] == pytest.approx(crossing)
    assert ring_steps(one(ranks), torus)[0] == pytest.approx(3 * 7)


def test_the_network_has_the_ports_that_the_ranks_of_a_node_can_use() -> None:
    system = SYSTEMS["dgx-h100"]
    _, network = place(system, 16)
    assert network is not None
    assert (network.nodes, network.per_node, network.ports) == (2, 8, 8)
    assert place(system, 2, 1, "p2p")[1].ports == 1  # type: ignore[union-attr]
    assert network.traffic("all_to_all", 1e9) == pytest.approx(8e9 * 8 / 16)
    assert place(system, 8)[1] is None


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda s: collective("gossip", 1, 2, s), "no collective `gossip`"),
        (lambda s: collective("all_reduce", 1, 2, s, library="mpi"), "no library `mpi`"),
        (lambda s: collective("all_reduce", 1, 2, s, algorithm="magic"), "no algorithm `magic`"),
        (lambda s: collective("all_reduce", 1, 16, s, per_node=9), "`9` ranks a node"),
    ],
)
def test_wrong_words_are_refused(call: object, message: str) -> None:
    with pytest.raises(TorchperfError, match=message):
        call(SYSTEMS["dgx-h100"])  # type: ignore[operator]


def test_one_rank_or_no_bytes_cost_nothing() -> None:
    assert collective("all_reduce", 1e9, 1, SYSTEMS["dgx-h100"]).seconds == 0
    assert collective("all_reduce", 0, 8, SYSTEMS["dgx-h100"]).seconds == 0


def test_a_link_without_fits_is_priced_by_its_bare_numbers() -> None:
    link = SYSTEMS["dgx-h100"].scale_up
    assert link is not None
    bare = replace(link, fits=())
    found = constants_of(bare, "all_gather", "nccl", 4)
    assert found.basis == "assumed"
    assert found.constants.alpha == link.floor.value
    assert on_links("all_gather", 1e8, Group(4, bare)).seconds > 0.75e8 / link.bandwidth.value


def test_unknown_constants_are_refused() -> None:
    with pytest.raises(TorchperfError, match="unknown constants: speed"):
        Constants.of(Fit("collective.p2p.nccl", (("speed", 1.0),), "", "", 0, 0, "vidur"))


def test_rows_tell_library_and_place() -> None:
    row = {
        "source": "vidur@7d475133:network/a100_dgx/all_reduce.csv (kineto kernel time)",
        "gpu": "A100-80GB",
        "topology": "DGX A100 NVSwitch; 2 node(s) x 4 GPU over inter-node net",
        "op": "all_reduce",
        "num_gpus": "8",
        "bytes": "1024",
        "measured_us": "40",
    }
    found = case(row)
    assert isinstance(found, Case)
    assert (found.library, found.link, found.inside, found.nodes) == ("nccl_kernel", "nvlink3", 4, 2)
    assert found.seconds == pytest.approx(40e-6)
    assert case(row | {"gpu": "T1000"}) == f"no record of `T1000` on `{row['topology']}`"
    assert case(row | {"bytes": ""}) == "no `bytes`"
    assert library_of("x custom_allreduce[vllm_graph]") == "vllm_graph"
    assert library_of("y (nccl-tests out-of-place)") == "nccl"
