"""Which products are those of linear layers, and which side of which tensor each of them reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from functools import lru_cache

from ..graph.graph import Block
from ..graph.op import Op
from ..graph.tensor import Value
from .low_precision_recipes import Recipe

# product -> its two factors: [.., m, k] and [.., k, n]
PRODUCTS = {
    "aten.mm": ("self", "mat2"), "aten.addmm": ("mat1", "mat2"), "aten.bmm": ("self", "mat2"),
    "aten.baddbmm": ("batch1", "batch2"), "aten._grouped_mm": ("self", "mat2"),
}  # fmt: skip
CHOICES = frozenset({"aten.topk", "aten.sort", "aten.argsort", "aten.argmax", "aten.kthvalue", "aten.max.dim"})

Key = tuple[int, int, int]  # a tensor in a block: slot, offset, elements


@dataclass(frozen=True, slots=True)
class Use:
    """One factor of a product that is to run in few bits.

    position  among the op's inputs
    role      input | weight | gradient
    column    whether the summed dim is not the contiguous one, so that scales run along the columns
    """

    op: int
    position: int
    value: Value
    role: str
    column: bool

    @property
    def key(self) -> Key:
        return key_of(self.value)


def key_of(value: Value) -> Key:
    """The tensor that a view shows, however it is turned."""
    return value.slot, int(value.offset), value.numel  # type: ignore[arg-type]


@lru_cache(maxsize=4096)
def packet(name: str) -> str:
    """`aten.mm` of `aten.mm.default`."""
    return name.rpartition(".")[0] or name


def turned(value: Value) -> bool:
    """Whether the last dim but one is the contiguous one."""
    (rows, columns), (down, across) = value.shape[-2:], value.strides[-2:]
    return bool(rows != 1 and columns != 1 and down < across)  # type: ignore[operator]


def factors(op: Op) -> tuple[int, int] | None:
    """Positions of a product's two factors among its inputs, or None."""
    names = PRODUCTS.get(packet(op.name))
    if names is None or names[0] not in op.operands or names[1] not in op.operands:
        return None
    return op.operands.index(names[0]), op.operands.index(names[1])


def weight_of(op: Op, block: Block) -> tuple[int, int] | None:
    """Positions of (parameter, other factor) of a product with one parameter, or None."""
    found = factors(op)
    if found is None:
        return None
    is_parameter = [block.storages[op.inputs[i].slot].kind == "param" for i in found]
    if sum(is_parameter) != 1:
        return None
    return found if is_parameter[0] else (found[1], found[0])


def parameters(block: Block, recipe: Recipe) -> tuple[dict[str, None], dict[str, str]]:
    """Names of the weights of a forward block: those of linear layers, and those kept in 16 bits with the reason."""
    low: dict[str, None] = {}
    high: dict[str, str] = {}
    choosing = _choosing(block)
    for i, op in enumerate(block.ops):
        places = weight_of(op, block)
        if places is None:
            continue
        weight = op.inputs[places[0]]
        name = block.storages[weight.slot].name or ""
        if i in choosing:
            high[name] = "chooses experts"
        elif any(int(dim) % recipe.multiple for dim in weight.shape[-2:]):  # type: ignore[arg-type]
            high[name] = f"a dim is no multiple of {recipe.multiple}"
        else:
            low[name] = None
    return {name: None for name in low if name not in high}, high


def _choosing(block: Block) -> set[int]:
    """Products whose result reaches a top-k (or the like) through no other product: routers."""
    made_by: dict[int, list[int]] = {}
    for i, op in enumerate(block.ops):
        for value in op.outputs:
            made_by.setdefault(value.slot, []).append(i)
    found: set[int] = set()
    seen: set[int] = set()
    stack = [i for i, op in enumerate(block.ops) if op.name in CHOICES or packet(op.name) in CHOICES]
    while stack:
        i = stack.pop()
        if i in seen:
            continue
        seen.add(i)
        if factors(block.ops[i]) is not None:
            found.add(i)
            continue
        stack += [j for value in block.ops[i].inputs for j in made_by.get(value.slot, ()) if j < i]
    return found


def forward_uses(block: Block, names: Mapping[str, None]) -> list[Use]:
    """Both factors of each product with one of the named weights."""
    found: list[Use] = []
    for i, op in enumerate(block.ops):
        places = weight_of(op, block)
        if places is not None and (block.storages[op.inputs[places[0]].slot].name or "") in names:
            found += _pair(i, op, places, ("weight", "input"))
    return found


def backward_uses(block: Block, names: Mapping[str, None], inputs: Set[Key], recipe: Recipe) -> list[Use]:
    """Factors of dX = dY W and, where the recipe has it in few bits, dW = dY^T X; `inputs` are the X known."""
    first: list[tuple[int, tuple[int, int]]] = []
    for i, op in enumerate(block.ops):
        places = weight_of(op, block)
        if places is not None and (block.storages[op.inputs[places[0]].slot].name or "") in names:
            first.append((i, places))
    gradients = {key_of(block.ops[i].inputs[places[1]]) for i, places in first}
    found = [use for i, places in first for use in _pair(i, block.ops[i], places, ("weight", "gradient"))]
    if recipe.weight_gradient:
        for i, op in enumerate(block.ops):
            places = _weight_gradient(op, block, names, inputs, gradients)
            if places is not None:
                found += _pair(i, op, places, ("input", "gradient"))
    return sorted(found, key=lambda use: (use.op, use.position))


def _weight_gradient(
    op: Op, block: Block, names: Mapping[str, None], inputs: Set[Key], gradients: Set[Key]
) -> tuple[int, int] | None:
    """Positions of (X, dY) where the op makes dW of one of the named weights."""
    places = factors(op)
    if places is None:
        return None
    a, b = places
    keys = key_of(op.inputs[a]), key_of(op.inputs[b])
    made = block.storages[op.outputs[0].slot]
    if made.kind == "grad" and (made.name or "") in names:
        first_is_input = keys[0] in inputs or keys[1] in gradients
        return (a, b) if first_is_input and keys[1] not in inputs else (b, a)
    if keys[0] in inputs and keys[1] in gradients:
        return a, b
    return (b, a) if keys[1] in inputs and keys[0] in gradients else None


def _pair(i: int, op: Op, places: tuple[int, int], roles: tuple[str, str]) -> Iterator[Use]:
    """The two factors of a product; the summed dim is the last of the first, the last but one of the second."""
    ordered = factors(op)
    assert ordered is not None
    for place, role in sorted(zip(places, roles, strict=True)):
        value = op.inputs[place]
        yield Use(i, place, value, role, turned(value) if place == ordered[0] else not turned(value))
