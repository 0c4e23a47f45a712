"""Fully sharded data parallelism (ZeRO 3, FSDP2): parameters gathered block by block, gradients scattered back.

Each repeated layer is a unit, everything outside the layers is the root unit. Before a unit runs its shards are
gathered into one flat buffer and copied out; the next unit's gather is issued before this one runs (prefetch). After
forward the copy is dropped (`reshard`) and gathered again for backward, but for the root's. A parameter is padded to a
multiple of the ranks in its first dim. After a unit's backward its gradients are copied into a flat buffer in the
reduce dtype and reduce-scattered while the unit before it runs. Lives of storages then tell memory, streams tell what
is hidden.

Source: PyTorch FSDP2 `fully_shard` (torch/distributed/fsdp/_fully_shard: FSDPParamGroup, FSDPState), [zhao2023fsdp];
ZeRO 3 [rajbhandari2020].
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from ..graph.dtype import bits
from ..graph.graph import Block, Graph, Segment
from ..graph.op import Op
from ..graph.tensor import Storage, Value
from .narrow import quantised

GATHERED = "gathered"  # kind of a storage that holds a unit's parameters or gradients for a while
BACKWARD = ("backward", "recompute")


@dataclass(frozen=True, slots=True)
class Group:
    """Ranks that share the shards of some parameters, `stride` apart."""

    ranks: int
    stride: int


@dataclass(frozen=True, slots=True)
class Sharding:
    """How the units are sharded.

    dense, experts   groups of ordinary and of expert parameters; `expert_names` are the latter
    gather           bits of an element, as gathered, of the weights of low-precision products; 0: as the parameter
    reduce           dtype in which gradients are summed
    """

    dense: Group
    experts: Group
    expert_names: frozenset[str] = frozenset()
    reshard: bool = True
    gather: int = 0
    reduce: str = "fp32"


@dataclass(frozen=True, slots=True)
class _Run:
    """Consecutive segments of one unit in one direction."""

    unit: str  # module path, "" for the root
    backward: bool
    start: int
    end: int


def fully_sharded(graph: Graph, sharding: Sharding) -> Graph:
    """The program of one rank and one micro-batch, with its gathers, copies and reduce-scatters."""
    return _Sharded(graph, sharding).run()


class _Sharded:
    def __init__(self, graph: Graph, sharding: Sharding) -> None:
        self.graph, self.sharding = graph, sharding
        self.fresh = graph.num_storages
        self.blocks = [_gathered(block) for block in graph.blocks]
        self.known: dict[tuple[object, ...], int] = {}  # content of an added block -> its index
        self.unit = self._units()
        self.parameters: dict[str, list[int]] = {}
        for storage, unit in self.unit.items():
            self.parameters.setdefault(unit, []).append(storage)
        facts = graph.facts
        self.shape = {p.storage: p.shape for p in facts.parameters}
        self.shapes = {p.names[0]: p.shape for p in facts.parameters}
        self.dtype = {p.storage: p.dtype for p in facts.parameters}
        self.expert = {p.storage for p in facts.parameters if p.names[0] in sharding.expert_names}
        self.quantised = quantised(graph)
        self.canonical = {name: p.names[0] for p in facts.parameters for name in p.names}
        self.gradient_dtype = facts.parameters[0].dtype if facts.parameters else "bf16"
        self.segments: list[Segment] = []
        self.flat: dict[int, tuple[int, ...]] = {}  # run -> flat buffers of a gather under way
        self.full: dict[str, int] = {}  # unit -> its gathered copy

    def _units(self) -> dict[int, str]:
        """The unit of each parameter's storage: its layer, or the root where more than one uses it."""
        unit: dict[int, str] = {}
        for segment in self.graph.segments:
            block = self.graph.blocks[segment.block]
            for slot, storage in enumerate(segment.storages):
                if block.storages[slot].kind == "param":
                    known = unit.setdefault(storage, segment.module)
                    if known != segment.module:
                        unit[storage] = ""
        return unit

    def run(self) -> Graph:
        runs = self._runs()
        outside: dict[int, Storage] = {}  # gradients of the root unit
        owed: list[Segment] = []  # waits for reduce-scatters that run beside the next unit
        if self.parameters.get(""):
            root = self._gather("", "forward", -1)
            self._copy_out("", "forward", root)
        for i, run in enumerate(runs):
            phase = self.graph.blocks[self.graph.segments[run.start].block].phase
            if run.unit and run.unit not in self.full:
                flat = self.flat.pop(i) if i in self.flat else self._gather(run.unit, phase, i)
                self._copy_out(run.unit, phase, flat)
            self._prefetch(runs, i)
            for segment in self.graph.segments[run.start : run.end]:
                self.segments.append(self._renamed(segment))
            keeps = not run.backward and not self.sharding.reshard
            if run.unit and not keeps:
                self.full.pop(run.unit, None)
            if run.backward and run.unit:
                self.segments += owed
                owed = self._reduce(run.unit, self._gradients(run))
            elif run.backward:
                outside |= self._gradients(run)
        self.segments += owed
        self.segments += self._reduce("", outside)
        return replace(self.graph, blocks=tuple(self.blocks), segments=tuple(self.segments))

    def _prefetch(self, runs: list[_Run], i: int) -> None:
        """Issue the gather of the next unit, once this one's has been copied out."""
        later = next((j for j in range(i + 1, len(runs)) if runs[j].unit), None)
        if later is None or later in self.flat or runs[later].unit in self.full:
            return
        phase = self.graph.blocks[self.graph.segments[runs[later].start].block].phase
        self.flat[later] = self._gather(runs[later].unit, phase, later)

    def _runs(self) -> list[_Run]:
        runs: list[_Run] = []
        for s, segment in enumerate(self.graph.segments):
            phase = self.graph.blocks[segment.block].phase
            if phase == "optimizer":
                continue
            backward = phase in BACKWARD
            if runs and runs[-1].unit == segment.module and runs[-1].backward == backward:
                runs[-1] = replace(runs[-1], end=s + 1)
            else:
                runs.append(_Run(segment.module, backward, s, s + 1))
        return runs

    def _fresh(self) -> int:
        self.fresh += 1
        return self.fresh - 1

    def _parts(self, unit: str) -> list[tuple[Group, int, int, str]]:
        """(group, elements, bytes, dtype) of a unit's parameters, ordinary ones and experts apart."""
        found = []
        for experts, group in ((False, self.sharding.dense), (True, self.sharding.experts)):
            own = [s for s in self.parameters.get(unit, ()) if (s in self.expert) == experts]
            numel = sum(padded(self.shape[s], group.ranks) for s in own)
            if numel:
                size = sum(padded(self.shape[s], group.ranks) * self._width(s) for s in own)
                found.append((group, numel, -(-size // 8), self.dtype[own[0]]))
        return found

    def _width(self, storage: int) -> int:
        """Bits of an element of a parameter as it is gathered."""
        own = bits(self.dtype[storage])
        return min(self.sharding.gather, own) if self.sharding.gather and storage in self.quantised else own

    def _block(self, key: tuple[object, ...], block: Block) -> int:
        if key not in self.known:
            self.known[key] = len(self.blocks)
            self.blocks.append(block)
        return self.known[key]

    def _gather(self, unit: str, phase: str, run: int) -> tuple[int, ...]:
        """All-gather a unit's shards; the flat buffers, one a group."""
        parts = self._parts(unit)
        module = _starred(unit)
        ops: list[Op] = []
        storages: list[Storage] = []
        for group, _, nbytes, _ in parts:
            at = len(storages)
            storages += [Storage(-(-nbytes // group.ranks), "param"), Storage(nbytes, GATHERED)]
            shard, whole = _bytes(at, -(-nbytes // group.ranks)), _bytes(at + 1, nbytes)
            ops.append(_collective("all_gather", phase, module, shard, whole, group))
        b = self._block(("gather", phase, module, *parts), Block(module, phase, tuple(storages), tuple(ops)))
        ids = [self._fresh() for _ in storages]
        self.segments.append(Segment(b, unit, tuple(ids)))
        return tuple(ids[1::2])

    def _copy_out(self, unit: str, phase: str, flat: tuple[int, ...]) -> None:
        parts = self._parts(unit)
        module = _starred(unit)
        nbytes = sum(part[2] for part in parts)
        storages = [Storage(part[2], GATHERED) for part in parts] + [Storage(nbytes, GATHERED)]
        ops = [
            Op("aten.clone.default", phase, module, ("self",), (_bytes(j, part[2]),), (_bytes(len(parts), part[2]),))
            for j, part in enumerate(parts)
        ]
        b = self._block(("copy", phase, module, *parts), Block(module, phase, tuple(storages), tuple(ops)))
        self.full[unit] = self._fresh()
        self.segments.append(Segment(b, unit, (*flat, self.full[unit])))

    def _reduce(self, unit: str, gradients: dict[int, Storage]) -> list[Segment]:
        """Copy a unit's gradients into flat buffers and scatter them; later waits keep the buffers till then."""
        module, dtype = _starred(unit), self.sharding.reduce
        width = bits(dtype) // 8
        later: list[Segment] = []
        for group, experts in ((self.sharding.dense, False), (self.sharding.experts, True)):
            own = {i: s for i, s in gradients.items() if (self._name(s, unit) in self.sharding.expert_names) == experts}
            if not own:
                continue
            before = self.gradient_dtype
            values = [
                Value(slot, before, (int(s.nbytes) * 8 // bits(before),), (1,))  # type: ignore[arg-type]
                for slot, s in enumerate(own.values())
            ]
            shapes = [
                self.shapes.get(self._name(s, unit), (v.numel,)) for s, v in zip(own.values(), values, strict=True)
            ]
            numel = sum(padded(shape, group.ranks) for shape in shapes)
            flat = Value(len(values), dtype, (numel,), (1,))
            op = Op("aten.cat.default", "backward", module, ("tensors",) * len(values), tuple(values), (flat,))
            storages = (*own.values(), Storage(numel * width, GATHERED))
            b = self._block(("in", module, *(v.shape for v in values)), Block(module, "backward", storages, (op,)))
            buffer = self._fresh()
            self.segments.append(Segment(b, unit, (*own, buffer)))
            part = -(-numel // group.ranks)
            kept = (Storage(numel * width, GATHERED), Storage(part * width, "grad"))
            shard = Value(1, dtype, (part,), (1,))
            scatter = _collective("reduce_scatter", "backward", module, replace(flat, slot=0), shard, group)
            b = self._block(("scatter", module, numel, group), Block(module, "backward", kept, (scatter,)))
            self.segments.append(Segment(b, unit, (buffer, self._fresh())))
            done = replace(flat, slot=0)
            wait = Op("aten.detach.default", "backward", module, ("self",), (done,), (done,))
            b = self._block(("wait", module, numel), Block(module, "backward", kept[:1], (wait,)))
            later.append(Segment(b, unit, (buffer,)))
        return later

    def _gradients(self, run: _Run) -> dict[int, Storage]:
        """The gradients that a run of backward makes, by their storage."""
        found: dict[int, Storage] = {}
        for segment in self.graph.segments[run.start : run.end]:
            for slot, storage in enumerate(self.blocks[segment.block].storages):
                if self.graph.blocks[segment.block].storages[slot].kind == "grad":
                    found[segment.storages[slot]] = storage
        return found

    def _name(self, storage: Storage, unit: str) -> str:
        """The first name of the parameter whose gradient this is."""
        own = (storage.name or "").replace(_starred(unit), unit, 1) if unit else storage.name or ""
        return self.canonical.get(own, own)

    def _renamed(self, segment: Segment) -> Segment:
        """The segment reading the gathered copies."""
        block = self.graph.blocks[segment.block]
        ids = list(segment.storages)
        for slot, storage in enumerate(segment.storages):
            if block.storages[slot].kind == "param" and storage in self.unit:
                ids[slot] = self.full[self.unit[storage]]
        return Segment(segment.block, segment.module, tuple(ids))


def padded(shape: tuple[int, ...], ranks: int) -> int:
    """Elements of a parameter whose first dim is padded to a multiple of `ranks`."""
    rows = shape[0] if shape else 1
    return -(-rows // ranks) * ranks * (math.prod(shape) // max(rows, 1))


def _gathered(block: Block) -> Block:
    """The block with its parameters and gradients in storages that come and go."""
    if not any(s.kind in ("param", "grad") for s in block.storages):
        return block
    storages = tuple(replace(s, kind=GATHERED) if s.kind in ("param", "grad") else s for s in block.storages)
    return replace(block, storages=storages)


def _bytes(slot: int, nbytes: int) -> Value:
    return Value(slot, "u8", (nbytes,), (1,))


def _collective(kind: str, phase: str, module: str, source: Value, target: Value, group: Group) -> Op:
    attrs = (("axis", "dp"), ("ranks", group.ranks), ("stride", group.stride), ("role", "fsdp"))
    return Op(f"torchperf.{kind}", phase, module, ("self",), (source,), (target,), attrs)


def _starred(unit: str) -> str:
    """`model.layers.3` -> `model.layers.*`."""
    parent, _, last = unit.rpartition(".")
    return f"{parent}.*" if last.isdigit() else unit
