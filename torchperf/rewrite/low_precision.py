"""Linear layers in 8 or 4 bits: the three products of each, the casts before them, and what backward then keeps.

Runs on a bound graph, on one rank's program: after the split of tensor parallelism, before recompute and fusing.
Rewritten are products with a parameter inside repeated layers (mixtures of experts too): Y = X W^T, dX = dY W and
dW = dY^T X. Embedding, head, routers, norms and the attention core keep 16 bits; so does a weight whose dims the engine
refuses (`kept_high` tells which). Master weights, gradients, optimizer states and every collective stay as they are.

cast once    a tensor that several products read (q, k and v of one X) is cast once
backward     reads forward's copies of X, or casts X again, as the recipe has it; the amax it finds in forward
weights      kept beside the 16-bit ones as buffers (`step`), or cast at each use; with sharded parameters at each use.
             Casts of kept weights bear `once="step"`: later micro-batches and a recompute leave them out

Not modelled: sequence-parallel gathers in 8 bits, which TransformerEngine does; norms that write 8 bits and their
transpose at once; the same dims of tokens padded to the engine's multiple.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..graph.errors import TorchperfError
from ..graph.graph import Block, Facts, Graph, Parameter, Segment
from .low_precision_copies import Editor, bring, needs
from .low_precision_find import Key, Use, backward_uses, forward_uses, parameters
from .low_precision_recipes import RECIPES, Recipe
from .precision import Precision

_FORWARD = ("forward", "recompute")


@dataclass(frozen=True, slots=True)
class _Pair:
    """A block of forward, its layer's backward block, and backward slot -> forward slot of what they share."""

    forward: int
    backward: int
    same: dict[int, int]


def quantise(graph: Graph, to: Precision, device_arch: str | None, sharded: bool = False) -> Graph:
    """The graph with its linear layers as `to.linear` has them; unchanged where that is None.

    device_arch  architecture of the device; None for one that takes each factor in one order alone
    sharded      parameters are gathered for each use (ZeRO 3): no copy of them outlives it
    raises       TorchperfError where the architecture lacks the recipe, or no linear layer is there to rewrite
    """
    if to.linear is None:
        return graph
    recipe = RECIPES[to.linear]
    _check(recipe, to, device_arch)
    high = _high_layers(graph, to)
    low = [s.block for s in graph.segments if s.module and s.module not in high]
    names: dict[str, None] = {}
    kept: dict[str, str] = {}
    for b in dict.fromkeys(low):
        if graph.blocks[b].phase in _FORWARD:
            found, others = parameters(graph.blocks[b], recipe)
            names.update(found)
            kept.update(others)
    names = {name: None for name in names if name not in kept}
    if not names:
        raise TorchperfError(
            f"`{to.name}` finds no linear layer to run in few bits",
            facts=list(kept.items()) or [("model", graph.facts.model)],
            hint="take `bf16-mixed`: only linear layers inside repeated layers are rewritten",
        )
    pass_ = _Pass(graph, recipe, device_arch, recipe.weights == "step" and not sharded, names)
    pass_.rewrite(low, _pairs(graph, high))
    return pass_.result(high)


def kept_high(graph: Graph, to: Precision) -> tuple[tuple[str, str], ...]:
    """(weight, why) of the linear layers inside repeated layers that keep 16 bits; `*` stands for the layer."""
    if to.linear is None:
        return ()
    blocks = dict.fromkeys(s.block for s in graph.segments if s.module)
    kept: dict[str, str] = {}
    for b in blocks:
        if graph.blocks[b].phase in _FORWARD:
            kept.update(parameters(graph.blocks[b], RECIPES[to.linear])[1])
    return (*kept.items(), *((layer, "first or last layer") for layer in _high_layers(graph, to)))


def _check(recipe: Recipe, to: Precision, device_arch: str | None) -> None:
    if recipe.architectures and device_arch is not None and device_arch not in recipe.architectures:
        raise TorchperfError(
            f"`{device_arch}` has no `{to.name}` on its matrix engine",
            facts=[("flag", "--precision")],
            hint=f"it is on {', '.join(recipe.architectures)}; or choose `bf16-mixed`",
        )


def _high_layers(graph: Graph, to: Precision) -> dict[str, None]:
    """The repeated layers at either end that keep 16 bits."""
    layers = list(
        dict.fromkeys(s.module for s in graph.segments if s.module and graph.blocks[s.block].phase == "forward")
    )
    first, last = min(to.high_first, len(layers)), min(to.high_last, len(layers))
    return dict.fromkeys((*layers[:first], *layers[len(layers) - last :]))


def _pairs(graph: Graph, high: dict[str, None]) -> list[_Pair]:
    """Blocks of forward and backward that belong together in every layer: one run of each, sharing the same slots."""
    runs: dict[str, dict[str, list[Segment]]] = {}
    for segment in graph.segments:
        if segment.module and segment.module not in high:
            phase = graph.blocks[segment.block].phase
            runs.setdefault(segment.module, {}).setdefault(phase, []).append(segment)
    found: dict[int, _Pair | None] = {}
    partner: dict[int, int] = {}
    for phases in runs.values():
        first = phases.get("recompute", phases.get("forward", []))
        back = phases.get("backward", [])
        if len(first) != 1 or len(back) != 1:
            found.update(dict.fromkeys(s.block for s in first))
            continue
        f, b = first[0], back[0]
        place = {storage: slot for slot, storage in enumerate(f.storages)}
        same = {slot: place[storage] for slot, storage in enumerate(b.storages) if storage in place}
        pair = _Pair(f.block, b.block, same)
        if found.setdefault(f.block, pair) != pair or partner.setdefault(b.block, f.block) != f.block:
            found[f.block] = None
    return [pair for pair in found.values() if pair is not None]


class _Pass:
    """One run of `quantise`: blocks as they become, and the slots that they gain."""

    def __init__(
        self, graph: Graph, recipe: Recipe, architecture: str | None, keep_weights: bool, names: dict[str, None]
    ) -> None:
        self.graph, self.recipe, self.architecture = graph, recipe, architecture
        self.keep_weights, self.names = keep_weights, names
        self.done: dict[int, Block] = {}
        self.imported: dict[int, dict[int, int]] = {}  # backward block: slot added -> slot of its forward block

    def rewrite(self, low: Sequence[int], pairs: Sequence[_Pair]) -> None:
        """Every block that a low layer runs: pairs together, others alone."""
        for pair in pairs:
            self._both(pair)
        for b in dict.fromkeys(low):
            if b not in self.done:
                block = self.graph.blocks[b]
                uses = forward_uses(block, self.names) if block.phase in _FORWARD else self._back(block, frozenset())
                self.done[b] = self._alone(block, uses)

    def _editor(self, block: Block) -> Editor:
        return Editor(block, self.recipe, self.architecture, self.keep_weights)

    def _back(self, block: Block, inputs: frozenset[Key]) -> list[Use]:
        return backward_uses(block, self.names, inputs, self.recipe)

    def _alone(self, block: Block, uses: Sequence[Use]) -> Block:
        if not uses:
            return block
        editor = self._editor(block)
        needs(editor, uses)
        return editor.run(uses)

    def _both(self, pair: _Pair) -> None:
        """Forward makes what backward reads of it; backward takes that, and casts the rest."""
        ahead, behind = (self._editor(self.graph.blocks[b]) for b in (pair.forward, pair.backward))
        uses = forward_uses(ahead.block, self.names)
        needs(ahead, uses)
        back = {there: here for here, there in pair.same.items()}
        inputs = frozenset((back[k[0]], k[1], k[2]) for k in _inputs(uses) if k[0] in back)
        later = self._back(behind.block, inputs)
        needs(behind, later)
        sides = {}
        for use in later:
            key, column = behind.side(use)
            there = pair.same.get(key[0])
            theirs = None if there is None else (there, key[1], key[2])
            if theirs in ahead.needed and self._outlives(use):
                ahead.needed[theirs][column] = use.role
                sides[(key, column)] = (theirs, column)
        self.done[pair.forward] = ahead.run(uses)
        added = bring(behind, ahead, pair.same, sides)
        self.done[pair.backward] = behind.run(later) if later else behind.block
        self.imported[pair.backward] = dict(added)

    def _outlives(self, use: Use) -> bool:
        """Whether forward's copy is there in backward."""
        if use.role == "weight":
            return self.keep_weights
        return use.role == "input" and self.recipe.saved == "quantised"

    def result(self, high: dict[str, None]) -> Graph:
        """The graph of the new blocks; layers that keep 16 bits run the old ones."""
        blocks = list(self.graph.blocks)
        number: dict[int, int] = {}
        still = {s.block for s in self.graph.segments if s.module in high}
        for b, block in self.done.items():
            if b in still and block is not blocks[b]:
                number[b] = len(blocks)
                blocks.append(block)
            else:
                number[b] = b
                blocks[b] = block
        segments: list[Segment] = []
        fresh = self.graph.num_storages
        forward: dict[str, Segment] = {}
        for segment in self.graph.segments:
            if not segment.module or segment.module in high:
                segments.append(segment)
                continue
            block = blocks[number[segment.block]]
            imported = self.imported.get(segment.block, {})
            storages = list(segment.storages)
            if imported:
                there = forward[segment.module].storages
                for slot in range(len(storages), len(block.storages)):
                    storages.append(there[imported[slot]] if slot in imported else fresh)
                    fresh += slot not in imported
            else:
                last = fresh + len(block.storages) - len(storages)
                storages += range(fresh, last)
                fresh = last
            new = Segment(number[segment.block], segment.module, tuple(storages))
            segments.append(new)
            if block.phase in _FORWARD:
                forward[segment.module] = new
        facts = _facts(self.graph.facts, blocks, segments) if self.keep_weights else self.graph.facts
        return replace(self.graph, blocks=tuple(blocks), segments=tuple(segments), facts=facts)


def _inputs(uses: Sequence[Use]) -> set[Key]:
    return {use.key for use in uses if use.role == "input"}


def _facts(facts: Facts, blocks: Sequence[Block], segments: Sequence[Segment]) -> Facts:
    """The kept copies of the weights as buffers: they are there for the whole step."""
    made = {
        b: [
            (value, block.storages[value.slot].name or "", str(op.attr("recipe")))
            for op in block.ops
            if op.attr("once") == "step" and op.name.startswith("torchperf.quantise")
            for value in op.outputs
        ]
        for b, block in enumerate(blocks)
        if block.phase in _FORWARD
    }
    buffers: dict[int, Parameter] = {}
    for segment in segments:
        for value, name, recipe in made.get(segment.block, ()):
            storage = segment.storages[value.slot]
            if storage not in buffers:
                path = name.replace(blocks[segment.block].module, segment.module, 1)
                shape: tuple[int, ...] = value.shape  # type: ignore[assignment]
                buffers[storage] = Parameter((f"{path} in {recipe}",), shape, value.dtype, False, storage)
    return replace(facts, buffers=(*facts.buffers, *buffers.values()))
