"""The precision of a run. A model is captured in bf16; here its 16-bit values take the dtype that runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ..graph.dtype import bits
from ..graph.errors import TorchperfError
from ..graph.graph import Block, Facts, Graph, Parameter, Segment
from ..graph.op import Attr, Op
from ..graph.system import SAME_RATE
from ..graph.tensor import Value
from .low_precision_recipes import RECIPES


@dataclass(frozen=True, slots=True)
class Precision:
    """The element types of a run.

    compute    dtype of weights and activations
    state      dtype of the optimizer's state
    master     whether an fp32 copy of the weights is kept
    linear     recipe of the linear layers inside the repeated layers (low_precision_recipes), None for `compute`
    gather     element type in which sharded weights are gathered: `bf16`, or `fp8` (cast on the shard; torchtitan's
               enable_fsdp_float8_all_gather); "" for `compute`
    high_first, high_last   repeated layers at either end whose linear layers keep `compute`
    """

    name: str
    compute: str
    state: str
    master: bool
    linear: str | None = None
    gather: str = ""
    high_first: int = 0
    high_last: int = 0


PRECISIONS = {
    p.name: p
    for p in (
        Precision("bf16-mixed", "bf16", "fp32", True),
        Precision("bf16", "bf16", "bf16", False),
        Precision("fp16-mixed", "fp16", "fp32", True),
        Precision("fp32", "fp32", "fp32", False),
        Precision("tf32", "tf32", "fp32", False),
        Precision("fp8-delayed", "bf16", "fp32", True, "delayed"),
        Precision("fp8-current", "bf16", "fp32", True, "current"),
        Precision("fp8-tensorwise", "bf16", "fp32", True, "tensorwise", "fp8"),
        Precision("fp8-rowwise", "bf16", "fp32", True, "rowwise"),
        Precision("fp8-rowwise-gw-hp", "bf16", "fp32", True, "rowwise-gw-hp"),
        Precision("fp8-blockwise", "bf16", "fp32", True, "blockwise"),
        Precision("mxfp8", "bf16", "fp32", True, "mxfp8"),
        Precision("nvfp4", "bf16", "fp32", True, "nvfp4"),
    )
}


def precision(name: str) -> Precision:
    """The precision of that name: one of PRECISIONS; a low one may keep layers high, `mxfp8:first=1,last=1`.

    Raises TorchperfError that names the flag and the known ones.
    """
    base, colon, kept = name.partition(":")
    if base not in PRECISIONS:
        raise TorchperfError(
            f"unknown precision `{name}`", facts=[("flag", "--precision")], hint=f"one of {', '.join(PRECISIONS)}"
        )
    if not colon:
        return PRECISIONS[base]
    high = _high(name, base, kept)
    return replace(PRECISIONS[base], name=name, high_first=high.get("first", 0), high_last=high.get("last", 0))


def _high(name: str, base: str, kept: str) -> dict[str, int]:
    """`first=1,last=4` -> layers at either end that stay in `compute`."""
    found: dict[str, int] = {}
    for part in kept.split(","):
        end, _, number = part.partition("=")
        if end not in ("first", "last") or end in found or not number.isdecimal() or int(number) == 0:
            raise TorchperfError(
                f"precision `{name}`: `{part}` says no number of layers",
                facts=[("flag", "--precision")],
                hint=f"`{base}:last=4` or `{base}:first=1,last=1`: layers that stay in {PRECISIONS[base].compute}",
            )
        found[end] = int(number)
    if PRECISIONS[base].linear is None:
        raise TorchperfError(
            f"precision `{name}`: `{base}` has no layers to keep high",
            facts=[("flag", "--precision")],
            hint=f"give `{base}`",
        )
    return found


def dtypes_needed(of: Precision | str) -> tuple[str, ...]:
    """The element types that a device's matrix engine must have; raises TorchperfError for an unknown name."""
    to = precision(of) if isinstance(of, str) else of
    if to.linear is None:
        return (to.compute,)
    recipe = RECIPES[to.linear]
    return tuple(dict.fromkeys((to.compute, *(SAME_RATE.get(d, d) for d in (recipe.forward, recipe.gradient)))))


def apply(graph: Graph, to: Precision) -> Graph:
    """The graph with every bf16 value in `to.compute`; a cast that changes nothing any more becomes an alias."""
    if to.compute == "bf16":
        return graph
    blocks, aliases = zip(*(_block(block, to.compute) for block in graph.blocks), strict=True)
    merged: dict[int, int] = {}

    def root(storage: int) -> int:
        while storage in merged:
            storage = merged[storage]
        return storage

    for segment in graph.segments:
        for source, target in aliases[segment.block]:
            a, b = root(segment.storages[source]), root(segment.storages[target])
            if a != b:
                merged[b] = a
    names = {storage: root(storage) for storage in merged}
    segments = graph.segments
    if names:
        segments = tuple(Segment(s.block, s.module, tuple(names.get(i, i) for i in s.storages)) for s in segments)
    return replace(graph, blocks=blocks, segments=segments, facts=_facts(graph.facts, to.compute, names))


def _facts(facts: Facts, dtype: str, names: Mapping[int, int]) -> Facts:
    def changed(p: Parameter) -> Parameter:
        return p if p.dtype != "bf16" else Parameter(p.names, p.shape, dtype, p.trainable, p.storage, p.gradient)

    return replace(
        facts,
        parameters=tuple(map(changed, facts.parameters)),
        buffers=tuple(map(changed, facts.buffers)),
        outputs=tuple(names.get(o, o) for o in facts.outputs),
    )


def _block(block: Block, dtype: str) -> tuple[Block, list[tuple[int, int]]]:
    halves = {value.slot for value in block.values() if value.dtype == "bf16"}
    scale = bits(dtype) // 16
    storages = tuple(
        replace(s, nbytes=s.nbytes * scale) if slot in halves else s  # type: ignore[operator]
        for slot, s in enumerate(block.storages)
    )
    values = {id(v): replace(v, dtype=dtype) if v.dtype == "bf16" else v for v in block.values()}
    aliases: list[tuple[int, int]] = []
    ops = tuple(_op(op, dtype, values, aliases) for op in block.ops)
    return Block(block.module, block.phase, storages, _merged(ops, aliases)), aliases


def _merged(ops: tuple[Op, ...], aliases: list[tuple[int, int]]) -> tuple[Op, ...]:
    """The ops with one slot for what has become one storage."""
    slot_of: dict[int, int] = {}
    for source, target in aliases:
        slot_of[target] = slot_of.get(source, source)
    if not slot_of:
        return ops

    def moved(values: tuple[Value, ...]) -> tuple[Value, ...]:
        return tuple(replace(v, slot=slot_of[v.slot]) if v.slot in slot_of else v for v in values)

    return tuple(replace(op, inputs=moved(op.inputs), outputs=moved(op.outputs)) for op in ops)


def _op(op: Op, dtype: str, values: dict[int, Value], aliases: list[tuple[int, int]]) -> Op:
    inputs = tuple(values[id(v)] for v in op.inputs)
    outputs = tuple(values[id(v)] for v in op.outputs)
    attrs = tuple((key, _attr(attr, dtype)) for key, attr in op.attrs)
    changed = replace(op, inputs=inputs, outputs=outputs, attrs=attrs)
    wide = {"fp32", "tf32"}
    cast = op.name == "aten._to_copy.default" and op.inputs[0].dtype != op.outputs[0].dtype
    if cast and dtype in wide and {inputs[0].dtype, outputs[0].dtype} <= wide:
        aliases.append((inputs[0].slot, outputs[0].slot))
        return replace(changed, name="torchperf.alias", attrs=())
    return changed


def _attr(attr: Attr, dtype: str) -> Attr:
    return dtype if attr == "bf16" else attr
