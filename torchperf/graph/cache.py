"""What a model keeps of the tokens it has seen, and the bytes of it.

kv       keys and values of every cached token, [heads, head_dim] each: grows with the sequence up to `window`
latent   one vector a token that every head reads (MLA): grows, and no head of it can be given to another device
cross    keys and values of an encoder's tokens: grows with the source, not with what is generated
state    recurrent or convolution state of a sequence: does not grow
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .dtype import bits as bits_of
from .errors import TorchperfError

if TYPE_CHECKING:
    from .graph import Facts

KINDS = ("kv", "latent", "cross", "state")


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """The cache of layers that are alike.

    module    path of the module that fills it, `*` for the layer's index
    layers    the indexes of these layers in the stack (of the modules themselves, where they lie in none)
    kind      kv | latent | cross | state
    heads     key heads, as far as tensor parallelism can share them out; 1 for a latent
    elements  of one layer: a token's keys and values, of all heads together; for a state a sequence's
    window    largest number of tokens kept, 0 where there is no such bound
    dtype     element type in which the model keeps it
    """

    module: str
    layers: tuple[int, ...]
    kind: str
    heads: int
    elements: int
    window: int = 0
    dtype: str = "bf16"

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise TorchperfError(f"unknown kind of cache `{self.kind}`", hint=f"one of {', '.join(KINDS)}")

    @property
    def count(self) -> int:
        """Number of layers."""
        return len(self.layers)

    def local(self, tp: int) -> int:
        """Elements that one of `tp` devices keeps: heads split where they divide evenly, copied where they cannot."""
        if self.heads % tp == 0:
            return self.elements // tp
        if tp % self.heads == 0:
            return self.elements // self.heads
        return self.elements

    def tokens(self, length: int) -> int:
        """Tokens kept of a sequence of `length`."""
        return min(length, self.window) if self.window else length


def kv_bytes(
    facts: Facts, bits: float | None, batch: int, length: int, tp: int = 1, *,
    source: int | None = None, layers: Collection[int] | None = None,
) -> int:  # fmt: skip
    """Bytes of the cache on one of `tp` devices, for `batch` sequences of `length` tokens.

    bits    an element of keys, values and latents takes (scales counted in); None for the dtype of the model.
            A state keeps the model's dtype
    source  tokens of the encoder, for a model that has one
    layers  only these layers of the stack: a pipeline stage; None for all
    Raises TorchperfError where the graph tells of no cache, or the source's length is missing.
    """
    return growing_bytes(facts, bits, batch, length, tp, source=source, layers=layers) + state_bytes(
        facts, batch, tp, layers=layers
    )


def growing_bytes(
    facts: Facts, bits: float | None, batch: int, length: int, tp: int = 1, *,
    source: int | None = None, layers: Collection[int] | None = None,
) -> int:  # fmt: skip
    """The part of `kv_bytes` that depends on the tokens."""
    total = 0.0
    for entry in _entries(facts):
        if entry.kind != "state":
            tokens = entry.tokens(length)
            if entry.kind == "cross":
                if source is None:
                    raise TorchperfError(f"`{facts.model}` caches its encoder's tokens: their number is not given")
                tokens = source
            total += _num(entry, layers) * entry.local(tp) * tokens * (bits_of(entry.dtype) if bits is None else bits)
    return -int(-batch * total // 8)


def state_bytes(facts: Facts, batch: int, tp: int = 1, *, layers: Collection[int] | None = None) -> int:
    """The part of `kv_bytes` that does not depend on the length of the sequences."""
    states = (entry for entry in _entries(facts) if entry.kind == "state")
    return batch * sum(_num(e, layers) * e.local(tp) * bits_of(e.dtype) // 8 for e in states)


def bytes_per_token(facts: Facts, bits: float | None = None, tp: int = 1, length: int = 1) -> int:
    """Bytes that the cache of one sequence grows by for the token after `length - 1` others."""
    before = growing_bytes(facts, bits, 1, length - 1, tp, source=0)
    return growing_bytes(facts, bits, 1, length, tp, source=0) - before


def _entries(facts: Facts) -> tuple[CacheEntry, ...]:
    if not facts.cache:
        raise TorchperfError(
            f"the graph of `{facts.model}` tells of no cache",
            facts=[("mode", facts.mode)],
            hint="capture the model with mode `prefill` or `decode`",
        )
    return facts.cache


def _num(entry: CacheEntry, layers: Collection[int] | None) -> int:
    return entry.count if layers is None else sum(i in layers for i in entry.layers)
