"""One block rewritten: casts where a tensor is first needed in few bits, and products that read the copies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..graph.dtype import nbytes
from ..graph.graph import Block
from ..graph.op import Attr, Op
from ..graph.tensor import Storage, Value
from .low_precision_find import Key, Use, packet, turned
from .low_precision_recipes import Recipe

Side = tuple[Key, bool]  # a tensor, and whether scales run along its columns


@dataclass(frozen=True, slots=True)
class Copy:
    """Slots of a copy in few bits and of its scales, and the element types of both."""

    data: int
    scale: int
    dtype: str


@dataclass(slots=True)
class Editor:
    """Builds one block.

    needed   sides of each tensor that somebody reads: all are made at the first use
    made     sides at hand; those that another block made are put in before `run`
    maxima   slots of amaxes at hand
    shared   slots that were added and where they come from: (side or tensor, what) of the block that made them
    """

    block: Block
    recipe: Recipe
    architecture: str | None
    keep_weights: bool
    needed: dict[Key, dict[bool, str]] = field(default_factory=dict)
    made: dict[Side, Copy] = field(default_factory=dict)
    maxima: dict[Key, int] = field(default_factory=dict)
    storages: list[Storage] = field(default_factory=list)
    first_copies: dict[Side, Copy] = field(default_factory=dict)
    first_maxima: dict[Key, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.storages = list(self.block.storages)

    def side(self, use: Use) -> Side:
        """The copy that a use reads: one serves both ways where scales and the engine allow it."""
        return use.key, use.column and self.recipe.two_sided(use.role == "weight", self.architecture)

    def add(self, storage: Storage) -> int:
        """The slot of a new storage."""
        self.storages.append(storage)
        return len(self.storages) - 1

    def run(self, uses: Sequence[Use]) -> Block:
        """The block with every use served; `needed` must hold what the block itself reads."""
        by_op: dict[int, list[Use]] = {}
        for use in uses:
            by_op.setdefault(use.op, []).append(use)
        ops: list[Op] = []
        for i, op in enumerate(self.block.ops):
            mine = by_op.get(i, ())
            for use in mine:
                if self.side(use) not in self.made:
                    ops += self._cast(use, op)
            ops.append(self._product(op, mine) if mine else op)
            if packet(op.name).endswith("_"):
                self._forget({value.slot for value in op.outputs})
        return Block(self.block.module, self.block.phase, tuple(self.storages), tuple(ops))

    def _forget(self, slots: set[int]) -> None:
        """What was copied of these slots has been written over."""
        for side in [side for side in self.made if side[0][0] in slots]:
            del self.made[side]
        for key in [key for key in self.maxima if key[0] in slots]:
            del self.maxima[key]

    def _cast(self, use: Use, of: Op) -> list[Op]:
        """The amax of a tensor, where the recipe wants one, and its cast."""
        key, recipe = use.key, self.recipe
        sides = sorted({side for side in self.needed[key] if (key, side) not in self.made})
        dtype = recipe.gradient if use.role == "gradient" else recipe.forward
        source = _plain(use.value)
        once = use.role == "weight" and self.keep_weights
        kind, name = ("buffer", self.storages[key[0]].name) if once else ("activation", None)
        said: tuple[tuple[str, Attr], ...] = (("once", "step"),) if once else ()
        ops: list[Op] = []
        inputs: tuple[Value, ...] = (source,)
        operands: tuple[str, ...] = ("self",)
        matrices = source.numel // _area(source)
        if recipe.amax:
            if key not in self.maxima:
                self.maxima[key] = self.add(Storage(nbytes(matrices, "fp32"), "activation"))
                self.first_maxima[key] = self.maxima[key]
                peak = _flat(self.maxima[key], "fp32", matrices)
                ops.append(Op("torchperf.amax.default", of.phase, of.module, ("self",), (source,), (peak,), said))
            inputs, operands = (source, _flat(self.maxima[key], "fp32", matrices)), ("self", "amax")
        outputs: list[Value] = []
        for column in sides:
            scales = self._scales(source, column, use.role == "weight")
            slot = self.add(Storage(nbytes(source.numel, dtype), kind, name))
            scale = self.add(Storage(nbytes(scales, recipe.scale), kind, name))
            copy = self.made[(key, column)] = Copy(slot, scale, dtype)
            self.first_copies.setdefault((key, column), copy)
            outputs += [_laid(source, slot, dtype, column), _flat(scale, recipe.scale, scales)]
        attrs = (("recipe", recipe.name), ("operand", use.role), *self._attrs(sides, use.role), *said)
        cast = Op("torchperf.quantise.default", of.phase, of.module, operands, inputs, tuple(outputs), attrs)
        return [*ops, cast]

    def _attrs(self, sides: Sequence[bool], role: str) -> tuple[tuple[str, Attr], ...]:
        """Which copies the cast writes, and how often it reads its source for them."""
        recipe = self.recipe
        rows, columns = False in sides, True in sides
        apart = recipe.column_readings if columns else 0
        readings = (recipe.row_readings if rows or not apart else 0) + apart
        transformed = recipe.hadamard and columns and role != "weight"
        block = (recipe.tile_w if role == "weight" else recipe.tile_x) != (0, 0)
        return (
            ("rows", rows), ("transpose", columns), ("amax", int(recipe.amax)), ("readings", readings),
            ("block", block), ("hadamard", transformed),
        )  # fmt: skip

    def _scales(self, source: Value, column: bool, weight: bool) -> int:
        """How many scales a copy has."""
        rows, columns = (int(d) for d in source.shape[-2:])  # type: ignore[arg-type]
        across, along = (columns, rows) if column else (rows, columns)
        tile = self.recipe.tile_w if weight else self.recipe.tile_x
        a, b = tile[0] or across, tile[1] or along
        return -(-across // a) * -(-along // b) * (source.numel // _area(source))

    def _product(self, op: Op, uses: Sequence[Use]) -> Op:
        """The product with copies for its factors, and their scales behind the other operands."""
        inputs, operands = list(op.inputs), list(op.operands)
        for use, letter in zip(uses, "ab", strict=False):
            (_, column), copy = self.side(use), self.made[self.side(use)]
            plain = _laid(_plain(use.value), copy.data, copy.dtype, column)
            inputs[use.position] = _as(use.value, plain)
            scales = self._scales(_plain(use.value), column, use.role == "weight")
            inputs.append(_flat(copy.scale, self.recipe.scale, scales))
            operands.append(f"scale_{letter}")
        return replace(op, inputs=tuple(inputs), operands=tuple(operands))


def needs(editor: Editor, uses: Sequence[Use]) -> None:
    """Note in `needed` every side that the uses read."""
    for use in uses:
        key, column = editor.side(use)
        editor.needed.setdefault(key, {})[column] = use.role


def bring(editor: Editor, other: Editor, slots: Mapping[int, int], sides: Mapping[Side, Side]) -> list[tuple[int, int]]:
    """Put copies that `other` made at hand: `sides` maps ours to theirs. (slot here, slot there) of what was added.

    Where nothing of the side but its amax is shared, `slots` maps (our tensor's slot -> theirs).
    """
    added: list[tuple[int, int]] = []
    known: dict[int, int] = {}

    def place(there: int) -> int:
        if there not in known:
            known[there] = editor.add(other.storages[there])
            added.append((known[there], there))
        return known[there]

    for ours, theirs in sides.items():
        copy = other.first_copies[theirs]
        editor.made[ours] = Copy(place(copy.data), place(copy.scale), copy.dtype)
    for key in editor.needed:
        there = slots.get(key[0])
        peak = None if there is None else other.first_maxima.get((there, key[1], key[2]))
        if peak is not None and any((key, side) not in editor.made for side in editor.needed[key]):
            editor.maxima[key] = place(peak)
    return added


def _plain(value: Value) -> Value:
    """The view of a tensor's matrices with their rows contiguous."""
    if not turned(value):
        return value
    shape, strides = value.shape, value.strides
    return replace(value, shape=(*shape[:-2], shape[-1], shape[-2]), strides=(*strides[:-2], strides[-1], strides[-2]))


def _area(value: Value) -> int:
    return max(int(value.shape[-2]) * int(value.shape[-1]), 1)  # type: ignore[arg-type]


def _laid(source: Value, slot: int, dtype: str, column: bool) -> Value:
    """A compact copy of the matrices of `source`, whose rows are contiguous; with `column`, whose columns are."""
    rows, columns = (int(d) for d in source.shape[-2:])  # type: ignore[arg-type]
    inner = (1, rows) if column else (columns, 1)
    strides: list[int] = []
    step = rows * columns
    for dim in reversed(source.shape[:-2]):
        strides.insert(0, step)
        step *= int(dim)  # type: ignore[arg-type]
    return Value(slot, dtype, source.shape, (*strides, *inner))


def _as(value: Value, plain: Value) -> Value:
    """The copy in the orientation in which the product reads the tensor."""
    if not turned(value):
        return plain
    shape, strides = plain.shape, plain.strides
    return replace(plain, shape=(*shape[:-2], shape[-1], shape[-2]), strides=(*strides[:-2], strides[-1], strides[-2]))


def _flat(slot: int, dtype: str, numel: int) -> Value:
    return Value(slot, dtype, (numel,), (1,))
