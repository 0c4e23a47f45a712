"""Which constants price a collective on a link: its own fit, else the nearest one, else the link's bare numbers."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from ..graph.errors import TorchperfError
from ..graph.system import Fit, Interconnect

LIBRARIES = ("nccl", "nccl_kernel", "vllm_graph", "vllm_eager", "trtllm")
_BOTH = ("nccl", "nccl_kernel")
_STAND_INS = {
    "all_reduce": (),
    "all_gather": ("reduce_scatter", "all_reduce"),
    "reduce_scatter": ("all_gather", "all_reduce"),
    "broadcast": ("all_gather", "all_reduce"),
    "all_to_all": ("all_gather", "all_reduce"),
    "p2p": ("all_to_all", "all_gather", "all_reduce"),
}


@dataclass(frozen=True, slots=True)
class Constants:
    """Constants of one collective of one library on one link.

    alpha         s before the first step; the launch where the clock of the rows counts it
    hop           s per further rank
    share         of the bandwidth that large messages reach, at most 1
    copy          B/s of the traffic inside a device; 0 for none
    half          s per square root of a byte, the ramp
    switch        s that the next protocol costs more, from about `switch_bytes` on, how sharply by `power`
    switch_bytes  bytes, of one peer's part where `per_peer` is 1
    simple        s that the protocol for large messages costs beyond that, from about `simple_bytes` on
    contention    exponent: how the bandwidth of a rank falls with the ranks on a shared bus; 0 on a switch
    barrier       s between the two steps of a two-shot all_reduce
    nvls_hop      s per rank of the all_reduce in the switch; nvls_share, of the bandwidth: 0 where there is none
    host          s that the host takes to issue it, eager; a floor
    stage         s per byte to copy into the library's buffer first
    """

    alpha: float = 0.0
    hop: float = 0.0
    share: float = 1.0
    copy: float = 0.0
    half: float = 0.0
    switch: float = 0.0
    switch_bytes: float = 1.0
    per_peer: float = 0.0
    power: float = 1.0
    simple: float = 0.0
    simple_bytes: float = 1.0
    simple_power: float = 1.0
    contention: float = 0.0
    barrier: float = 0.0
    nvls_hop: float = 0.0
    nvls_share: float = 0.0
    host: float = 0.0
    stage: float = 0.0

    @classmethod
    def of(cls, fit: Fit) -> Constants:
        """Those of a `collective.<kind>.<library>` fit; what it does not name is 0 (no such effect)."""
        given = dict(fit.parameters)
        unknown = set(given) - {field.name for field in fields(cls)}
        if unknown:
            raise TorchperfError(f"fit `{fit.name}` has unknown constants: {', '.join(sorted(unknown))}")
        return cls(**given)


@dataclass(frozen=True, slots=True)
class Found:
    """Constants, the keys of their sources, how they came here (fitted | assumed), and where they stand (see Term)."""

    constants: Constants
    sources: tuple[str, ...]
    basis: str
    records: tuple[str, ...]


def constants_of(link: Interconnect, kind: str, library: str, ranks: int) -> Found:
    """Those of this kind and library on this link.

    Without a fit of its own: the other clock of NCCL, then the collective that moves its bytes most alike, then one
    latency, floor and share of the link itself. A library of all_reduce alone falls back to NCCL.
    """
    if library not in LIBRARIES:
        raise TorchperfError(
            f"no library `{library}` of collectives", hint="choose one of " + ", ".join(f"`{a}`" for a in LIBRARIES)
        )
    wanted = f"collective.{kind}.{library}"
    clocks = (library, *(clock for clock in _BOTH if clock != library))
    for stand_in in (kind, *_STAND_INS[kind]):
        for clock in clocks if stand_in == kind else _BOTH:
            fit = link.find_fit(f"collective.{stand_in}.{clock}")
            if fit is not None:
                own = fit.name == wanted and fit.basis == "fitted"
                found = Constants.of(fit)
                if link.pair_bandwidth.value < link.bandwidth.value:  # no switch, so none that adds up
                    found = replace(found, nvls_share=0.0)
                return Found(found, (fit.source,), "fitted" if own else "assumed", (f"{link.name}: {fit.name}",))
    share = link.efficiency(kind, ranks)
    bare = Constants(alpha=link.floor.value, hop=link.latency.value, share=share.value)
    row = next(f"efficiency.{name}.{count}" for name, count, s in link.efficiencies if s is share)
    records = tuple(f"{link.name}: {key}" for key in ("floor", "latency", row))
    return Found(bare, (link.floor.source, link.latency.source, share.source), "assumed", records)
