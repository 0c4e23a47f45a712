"""The values of a hardware record under their keys, with the references they carry."""

from __future__ import annotations

from collections.abc import Iterator

from torchperf.graph.runtime import Runtime
from torchperf.graph.system import Accelerator, Interconnect, Sourced, System

Hardware = Accelerator | System | Interconnect | Runtime
Row = tuple[str, Sourced]
Group = tuple[str, str, list[Row]]  # key of a link in the record or "", name of the link, its values


def groups(record: Hardware) -> list[Group]:
    """The values of a record under their keys in its file, then those of each link that it names."""
    if isinstance(record, Accelerator):
        return [("", "", list(_accelerator(record))), _link("host_link", record.host_link)]
    if isinstance(record, System):
        links = (
            ("scale_up", record.scale_up),
            ("scale_out", record.scale_out),
            ("host_link", record.host_link),
        )
        return [("", "", list(_system(record))), *(_link(key, link) for key, link in links if link)]
    if isinstance(record, Runtime):
        return [("", "", list(_runtime(record)))]
    return [("", "", list(_interconnect(record)))]


def _link(key: str, link: Interconnect) -> Group:
    return key, link.name, list(_interconnect(link))


def _accelerator(a: Accelerator) -> Iterator[Row]:
    for peak in a.peaks:
        yield f"peak.{peak.engine}.{peak.dtype}", peak.flops_per_s
    yield "memory.nominal", a.memory.nominal
    yield "memory.usable", a.memory.usable
    yield "memory.bandwidth", a.memory.bandwidth
    yield "memory.l2", a.memory.l2
    if a.memory.l2_bandwidth:
        yield "memory.l2_bandwidth", a.memory.l2_bandwidth
    yield from (("num_units", a.num_units), ("clock", a.clock), ("tdp", a.tdp))
    yield from (("link_bandwidth", a.link_bandwidth), ("kernel_floor", a.kernel_floor))
    for e in a.efficiencies:
        yield f"efficiency.{e.engine}.{e.dtype}", e.share


def _system(s: System) -> Iterator[Row]:
    yield "accelerators_per_node", s.accelerators_per_node
    yield "nics_per_node", s.nics_per_node
    if s.host_memory:
        yield "host_memory", s.host_memory


def _runtime(r: Runtime) -> Iterator[Row]:
    yield from (("launch", r.launch), ("reserve", r.reserve), ("allocator_fraction", r.allocator_fraction))
    yield "training.overlap_slowdown", r.training.overlap_slowdown
    yield "training.bucket", r.training.bucket
    for kernel in r.attention_kernels:
        key = f"attention_kernel.{kernel.architecture.lower().replace(' ', '-')}"
        yield from ((f"{key}.forward", kernel.forward), (f"{key}.backward", kernel.backward))
    for architecture, pace in r.training.pace:
        yield f"training.pace.{architecture.lower().replace(' ', '-')}", pace
    for key in ("layer_overhead", "step_copies", "step_buffer"):
        if (value := getattr(r.training, key)) is not None:
            yield f"training.{key}", value


def _interconnect(link: Interconnect) -> Iterator[Row]:
    yield from (("bandwidth", link.bandwidth), ("pair_bandwidth", link.pair_bandwidth))
    yield from (("latency", link.latency), ("floor", link.floor))
    for collective, ranks, share in link.efficiencies:
        yield f"efficiency.{collective}.{ranks}", share
