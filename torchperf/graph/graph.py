"""The recorded program of one model: blocks of ops, and the order in which the blocks are called.

A run of ops that repeats (a transformer layer's forward, its backward) is stored once, as a `Block`; each time it
runs is a `Segment`, which says for every storage slot of the block which storage of the whole program it is.
Costs are summed over blocks times their count; memory walks the segments.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from .cache import CacheEntry
from .errors import TorchperfError
from .expr import Dim, bind_dim
from .op import Op
from .tensor import Storage, Value

MODES = ("train", "forward", "prefill", "decode", "extend")


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter or buffer of the model. `names` are all its paths: more than one where it is tied."""

    names: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str
    trainable: bool
    storage: int  # id in the program, -1 where no op touched it
    gradient: bool = True  # False where training never reaches it: no gradient, no optimizer state

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def trained(self) -> bool:
        """Whether a training step makes its gradient."""
        return self.trainable and self.gradient


@dataclass(frozen=True, slots=True)
class Input:
    """A tensor that the caller feeds in; dims may be size expressions."""

    name: str
    shape: tuple[Dim, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class Facts:
    """What the frontend alone can know, kept so that nothing later needs torch.

    sizes         the free sizes and the values they take where the user names none, e.g. (("batch", 1), ("seq", 4096))
    ranges        (size, low, high or -1, step): where the expressions hold; outside, the model is captured again;
                  step k > 0 means multiples of k only, k < 0 everything but multiples of -k, 0 every size
    limits        (size, largest): e.g. the positions that a model has
    fixed         a reason, where the sizes are not free (the user's inputs could not be varied); else ""
    outputs       program storages that the caller holds until the end of backward (logits, loss)
    guesses       answers given to the model that it would read from data, e.g. "`mask.all()` taken as true"
    assumptions   choices made for the user, e.g. "the sum of the outputs stands in for a loss"
    unattributed  backward ops whose module could not be told
    config        plain facts of a config: max_position_embeddings, vocab_size, ... (only what was there)
    versions      ("torch", "2.13.0"), ...
    tp_plan       (module or parameter, `*` for the layer's index; its style), as the model itself brings it; else empty
    cache         what the model keeps of earlier tokens; empty where the mode keeps nothing
    """

    model: str
    model_class: str
    mode: str  # one of MODES
    parameters: tuple[Parameter, ...] = ()
    buffers: tuple[Parameter, ...] = ()
    inputs: tuple[Input, ...] = ()
    sizes: tuple[tuple[str, int], ...] = ()
    ranges: tuple[tuple[str, int, int, int], ...] = ()
    limits: tuple[tuple[str, int], ...] = ()
    fixed: str = ""
    outputs: tuple[int, ...] = ()
    guesses: tuple[str, ...] = ()
    assumptions: tuple[str, ...] = ()
    unattributed: int = 0
    config: tuple[tuple[str, int | float | str | bool], ...] = ()
    versions: tuple[tuple[str, str], ...] = ()
    tp_plan: tuple[tuple[str, str], ...] = ()
    cache: tuple[CacheEntry, ...] = ()

    def fact(self, key: str) -> int | float | str | bool | None:
        """A fact of the model's config, or None."""
        return dict(self.config).get(key)


@dataclass(frozen=True, slots=True)
class Block:
    """A run of ops in one phase. `module` is the layer's path with `*` for its index, or "" outside any layer."""

    module: str
    phase: str
    storages: tuple[Storage, ...]
    ops: tuple[Op, ...]

    def values(self) -> Iterator[Value]:
        """Each distinct value object, once, in the order of first use."""
        seen: set[int] = set()
        for op in self.ops:
            for value in (*op.inputs, *op.outputs):
                if id(value) not in seen:
                    seen.add(id(value))
                    yield value

    def bind(self, sizes: Mapping[str, int]) -> Block:
        values = {id(v): v.bind(sizes) for v in self.values()}
        storages = tuple(replace(s, nbytes=bind_dim(s.nbytes, sizes)) for s in self.storages)
        return Block(self.module, self.phase, storages, tuple(op.bind(sizes, values) for op in self.ops))


@dataclass(frozen=True, slots=True)
class Segment:
    """One call of a block: `module` is the layer it stands for, `storages` its slots as ids of the program."""

    block: int
    module: str
    storages: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Graph:
    """One captured model, at free sizes (dims are expressions) or bound to given ones (dims are integers)."""

    facts: Facts
    blocks: tuple[Block, ...]
    segments: tuple[Segment, ...]
    bound: tuple[tuple[str, int], ...] | None = field(default=None)

    @property
    def num_storages(self) -> int:
        return 1 + max((max(s.storages, default=-1) for s in self.segments), default=-1)

    @property
    def counts(self) -> tuple[int, ...]:
        """How often each block runs."""
        counts = [0] * len(self.blocks)
        for segment in self.segments:
            counts[segment.block] += 1
        return tuple(counts)

    @property
    def num_ops(self) -> int:
        return sum(count * len(block.ops) for count, block in zip(self.counts, self.blocks, strict=True))

    def ops(self) -> Iterator[tuple[Op, int]]:
        """Each stored op with the number of times it runs."""
        for count, block in zip(self.counts, self.blocks, strict=True):
            for op in block.ops:
                yield op, count

    def size(self, name: str) -> int | None:
        """A bound size, or None where the graph has no such size."""
        return dict(self.bound or ()).get(name)

    def holds(self, sizes: Mapping[str, int]) -> bool:
        """Whether the expressions hold at `sizes`."""
        return len(sizes) == len(self.facts.ranges) and all(
            name in sizes and _within(sizes[name], low, high, step) for name, low, high, step in self.facts.ranges
        )

    def bind(self, **sizes: int) -> Graph:
        """This graph at concrete sizes, in milliseconds and without torch.

        Raises TorchperfError where a size is missing, unknown, not positive, or outside `facts.ranges`.
        """
        for name, size in sizes.items():
            if size < 1:
                raise TorchperfError(f"`{name}` is {size}: it must be at least 1", hint=f"give a positive `{name}`")
        known = {name for name, *_ in self.facts.ranges}
        if set(sizes) != known:
            raise TorchperfError(
                "the sizes given are not the graph's",
                facts=[
                    ("graph has", ", ".join(sorted(known)) or "none"),
                    ("given", ", ".join(sorted(sizes)) or "none"),
                ],
            )
        for name, low, high, step in self.facts.ranges:
            if not _within(sizes[name], low, high, step):
                raise OutOfRange(name, sizes[name], low, high, step)
        blocks = tuple(block.bind(sizes) for block in self.blocks)
        return replace(self, blocks=blocks, bound=tuple(sorted(sizes.items())))


def _within(size: int, low: int, high: int, step: int) -> bool:
    return low <= size and (high == -1 or size <= high) and (not step or (size % abs(step) == 0) == (step > 0))


@dataclass(frozen=True, slots=True)
class Capture:
    """One model captured: a graph for each regime of sizes (batch 1, batch 2 and more, beside a scan's chunk, ...)."""

    graphs: tuple[Graph, ...]

    @property
    def facts(self) -> Facts:
        return self.graphs[0].facts

    def find(self, sizes: Mapping[str, int]) -> Graph | None:
        """The graph whose ranges hold `sizes`, or None."""
        return next((g for g in self.graphs if g.holds(sizes)), None)

    def bind(self, **sizes: int) -> Graph:
        """The program at concrete sizes; sizes not named take the defaults of `facts.sizes`.

        Raises TorchperfError (OutOfRange where another capture is needed).
        """
        merged = {**dict(self.facts.sizes), **sizes}
        return (self.find(merged) or self._nearest(merged)).bind(**merged)

    def _nearest(self, sizes: Mapping[str, int]) -> Graph:
        """The graph that holds the most of `sizes`, for the error that tells the one it does not."""
        return max(
            self.graphs, key=lambda g: sum(_within(sizes.get(n, 0), low, high, k) for n, low, high, k in g.facts.ranges)
        )

    def __str__(self) -> str:
        from .text import show

        return show(self)


class OutOfRange(TorchperfError):
    """A size at which the graph's expressions do not hold: the model must be captured again."""

    def __init__(self, name: str, size: int, low: int, high: int, step: int) -> None:
        upper = "" if high == -1 else f" to {high}"
        only = "" if not step else f", multiples of {step}" if step > 0 else f", no multiple of {-step}"
        super().__init__(
            f"`{name}` = {size} lies outside what was captured",
            facts=[("captured", f"{name} from {low}{upper}{only}")],
            hint="capture the model again at this size",
        )
