"""The hardware nouns: what one device, one link and one system can do, each number with its reference.

Inside Python every number is in base units: seconds, bytes, FLOPs, hertz, watts, or a plain share. Files may
say GB/s or us.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from .errors import TorchperfError

# element types that run at another's rate; the records name only the second
SAME_RATE = {"i8": "int8", "u8": "int8", "fp8_e5m2": "fp8", "fp8_block": "fp8", "mxfp8": "fp8"}


@dataclass(frozen=True, slots=True)
class Sourced:
    """A number that cannot exist without its reference.

    value      in base units, converted when the file was loaded
    unit       the base unit: `FLOP/s`, `B`, `B/s`, `s`, `Hz`, `W`, or `1` for a share or a count
    basis      datasheet | whitepaper | measured | fitted | derived | assumed
    source     a key of sources.bib
    condition  when it holds: dense or sparse, accumulate type, message size
    scope      counted over what: per_gpu, per_node, per_direction, per_hop, per_op, per_kernel, per_process
    """

    value: float
    unit: str
    basis: str
    source: str
    condition: str
    scope: str


@dataclass(frozen=True, slots=True)
class Fit:
    """Constants fitted together, times in seconds; errors are absolute shares on rows held out of the fit.

    file   where it was read
    basis  fitted | assumed: on rows of this device or link itself, or carried over from another's
    """

    name: str
    parameters: tuple[tuple[str, float], ...]
    rows: str
    range: str
    median_error: float
    p90_error: float
    source: str
    basis: str = "fitted"
    file: str = ""

    def __getitem__(self, parameter: str) -> float:
        """The value of one fitted constant; KeyError if the fit has none of that name."""
        return dict(self.parameters)[parameter]


class Fitted:
    """What has fits, found by name: `<family>.<key>`, such as `matmul.16bit` or `collective.all_reduce.nccl`."""

    __slots__ = ()
    name: str
    file: str
    fits: tuple[Fit, ...]

    def find_fit(self, name: str) -> Fit | None:
        """The fit of that name, or None."""
        return next((fit for fit in self.fits if fit.name == name), None)

    def fit(self, name: str) -> Fit:
        """The fit of that name; a TorchperfError where there is none."""
        found = self.find_fit(name)
        if found:
            return found
        family = name.partition(".")[0]
        has = ", ".join(f"`{fit.name}`" for fit in self.fits if fit.name.startswith(f"{family}."))
        hint = f"it has {has}" if has else f"give `fits_from` in that file, or fits/{family}/{self.name}.toml"
        raise TorchperfError(f"`{self.name}` has no fit `{name}`", facts=(("where", self.file),), hint=hint)


@dataclass(frozen=True, slots=True)
class Peak:
    """Dense peak of one engine (`matrix` or `vector`) at one element type, FLOP/s."""

    engine: str
    dtype: str
    flops_per_s: Sourced


@dataclass(frozen=True, slots=True)
class Efficiency:
    """Sustained share of the peak of one engine (or of `memory`); dtype may be `default`."""

    engine: str
    dtype: str
    share: Sourced


@dataclass(frozen=True, slots=True)
class Memory:
    """Device memory and the last cache that the whole device shares.

    nominal       bytes; the vendor's "80 GB" of device memory is 80 GiB as a rule, and stored so
    usable        bytes that torch reports as total_memory
    bandwidth     B/s, read or write, peak
    l2            bytes of the last cache shared by the whole device
    l2_bandwidth  B/s of that cache, where known
    """

    nominal: Sourced
    usable: Sourced
    bandwidth: Sourced
    l2: Sourced
    l2_bandwidth: Sourced | None


@dataclass(frozen=True, slots=True)
class Interconnect(Fitted):
    """One fabric or host link, seen from one device (a network: from one port).

    bandwidth       B/s per direction that one device can send to all its peers together
    pair_bandwidth  B/s per direction between two devices
    latency         seconds that each further step of a collective adds
    floor           seconds that a collective costs before its first step
    efficiencies    (collective or `default`, ranks, share of `bandwidth` as bus bandwidth of a large message)
    fits            constants of the prices of its collectives, `collective.<key>`
    fits_from       links whose fits it takes, as assumed, where it has none of its own; the first that has it
    """

    name: str
    aliases: tuple[str, ...]
    bandwidth: Sourced
    pair_bandwidth: Sourced
    latency: Sourced
    floor: Sourced
    efficiencies: tuple[tuple[str, int, Sourced], ...]
    file: str
    fits: tuple[Fit, ...] = ()
    fits_from: tuple[str, ...] = ()

    def efficiency(self, collective: str, num_ranks: int) -> Sourced:
        """Share of `bandwidth` that `collective` reaches over `num_ranks`.

        The tabulated count next below num_ranks, or the lowest; `default` where there is no table.
        """
        name = collective if any(row[0] == collective for row in self.efficiencies) else "default"
        rows = [row for row in self.efficiencies if row[0] == name]
        below = [row for row in rows if row[1] <= num_ranks]
        row = max(below, key=lambda r: r[1]) if below else min(rows, key=lambda r: r[1])
        return row[2]


@dataclass(frozen=True, slots=True)
class Accelerator(Fitted):
    """One device as PyTorch sees it.

    num_units       streaming multiprocessors or compute units
    clock           Hz at which the matrix peak is stated
    tdp             W
    link_bandwidth  B/s per direction of the scale-up link, all peers together
    kernel_floor    seconds that the shortest kernel takes, back to back
    fits            constants of the prices of its kernels, `<family>.<key>`
    file            where it was read, for messages
    fits_from       devices whose fits it takes, as assumed, where it has none of its own; the first that has it
    """

    name: str
    aliases: tuple[str, ...]
    vendor: str
    architecture: str
    year: int
    form_factor: str
    peaks: tuple[Peak, ...]
    memory: Memory
    num_units: Sourced
    clock: Sourced
    tdp: Sourced
    link_bandwidth: Sourced
    host_link: Interconnect
    efficiencies: tuple[Efficiency, ...]
    kernel_floor: Sourced
    fits: tuple[Fit, ...]
    file: str
    fits_from: tuple[str, ...] = ()

    def capped(self, watts: float) -> Accelerator:
        """The device under a power cap: peaks and clock times (watts / TDP)^(1/3), at most 1; memory as it is.

        Assumed: dynamic power goes as clock x voltage^2, voltage as clock. Ignores static and memory power.
        """
        if not watts > 0:
            raise TorchperfError(f"a power cap must be above 0 W, not `{watts:g}`")
        if watts >= self.tdp.value:
            return self
        scale = (watts / self.tdp.value) ** (1 / 3)
        note = f"capped at {watts:g} W: x {scale:.3f}, the cube root of the share of the TDP"

        def scaled(s: Sourced) -> Sourced:
            return replace(s, value=s.value * scale, basis="assumed", condition=f"{s.condition}; {note}")

        peaks = tuple(replace(peak, flops_per_s=scaled(peak.flops_per_s)) for peak in self.peaks)
        tdp = replace(self.tdp, value=watts, condition="power cap, given")
        return replace(self, peaks=peaks, clock=scaled(self.clock), tdp=tdp)

    def dtypes(self, engine: str) -> tuple[str, ...]:
        """The element types that `engine` has a peak for, in the order of the file."""
        return tuple(peak.dtype for peak in self.peaks if peak.engine == engine)

    def peak(self, engine: str, dtype: str) -> Sourced:
        """Dense peak in FLOP/s with its reference; a type the engine lacks is a TorchperfError."""
        wanted = SAME_RATE.get(dtype, dtype)
        for peak in self.peaks:
            if peak.engine == engine and peak.dtype == wanted:
                return peak.flops_per_s
        has = ", ".join(f"`{name}`" for name in self.dtypes(engine)) or "none"
        raise TorchperfError(
            f"device `{self.name}` has no `{dtype}` peak on its {engine} engine",
            facts=(("where", f"{self.file}: peak.{engine}"),),
            hint=f"choose a precision it has: {has}; or another device",
        )

    def peak_flops_per_s(self, engine: str, dtype: str) -> float:
        """Dense peak in FLOP/s; a type the engine lacks is a TorchperfError."""
        return self.peak(engine, dtype).value

    def matmul_engine(self, dtype: str) -> str:
        """`vector` where only that engine has the type (fp32 with TF32 off), else `matrix`."""
        wanted = SAME_RATE.get(dtype, dtype)
        only_vector = wanted in self.dtypes("vector") and wanted not in self.dtypes("matrix")
        return "vector" if only_vector else "matrix"

    def efficiency(self, engine: str, dtype: str = "default") -> Sourced:
        """Sustained share of peak of `matrix`, `vector` or `memory`: the type's entry, else the `default`."""
        wanted = SAME_RATE.get(dtype, dtype)
        rows = {row.dtype: row.share for row in self.efficiencies if row.engine == engine}
        return rows.get(wanted, rows["default"])


@dataclass(frozen=True, slots=True)
class System:
    """Nodes of one kind: how many devices a node has, and what joins them inside and out.

    scale_up, scale_out  None for a single device, or for a node without a network
    nics_per_node        ports of `scale_out` that a node has
    host_memory          bytes per node; None where unknown
    """

    name: str
    aliases: tuple[str, ...]
    accelerator: Accelerator
    accelerators_per_node: Sourced
    scale_up: Interconnect | None
    scale_out: Interconnect | None
    nics_per_node: Sourced
    host_memory: Sourced | None
    host_link: Interconnect
    file: str

    @property
    def num_accelerators(self) -> int:
        """Devices in one node."""
        return int(self.accelerators_per_node.value)

    @property
    def num_nics(self) -> int:
        """Network ports in one node."""
        return int(self.nics_per_node.value)

    @property
    def scale_out_bytes_per_s(self) -> float:
        """B/s per direction and device out of the node when all its devices send; 0 without a network."""
        if self.scale_out is None:
            return 0.0
        return self.scale_out.bandwidth.value * self.num_nics / self.num_accelerators
