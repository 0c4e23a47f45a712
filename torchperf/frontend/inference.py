"""A Subject as it runs when it serves: the prompt at once (prefill), or tokens behind others that are cached.

prefill   sizes batch, seq        a cache is filled; logits of the last token alone, as `generate` asks for
decode    sizes batch, kv         one new token behind `kv` that are cached; attention reads kv + 1
extend    sizes batch, seq, kv    `seq` new tokens behind `kv`: a chunk of a prompt, or a prompt whose prefix is known
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from ..graph.cache import CacheEntry
from ..graph.errors import TorchperfError
from . import fold, recipes
from .subject import Arguments, Subject

DEFAULT_KV = 4096
DEFAULT_CHUNK = 512
_WARM = 2  # tokens of the unrecorded prefill that makes states


def for_mode(subject: Subject, mode: str) -> Subject:
    """`subject` with the inputs and sizes of `mode`; raises TorchperfError where it cannot generate."""
    if mode in ("train", "forward"):
        return subject
    accepted = _accepted(subject)
    both = getattr(subject.module.config, "is_encoder_decoder", False)
    with_cache = (_EncoderDecoder if both else _Inputs)(subject, accepted, mode)
    windows = with_cache.windows()
    limit = subject.limits.get("seq")
    if both:
        return _encoder_decoder(subject, with_cache, mode)
    if mode == "prefill":
        return replace(subject, arguments=with_cache, constants=tuple(sorted(windows)), loss=None)
    top = None if limit is None else limit - 1
    kv = {"kv": DEFAULT_KV if top is None else min(DEFAULT_KV, top)}
    new = {"seq": min(subject.sizes["seq"], DEFAULT_CHUNK)} if mode == "extend" else {}
    return replace(
        subject,
        arguments=with_cache,
        sizes={"batch": subject.sizes["batch"], **new, **kv},
        limits={} if top is None else dict.fromkeys((*new, *kv), top),
        breaks=subject.breaks if mode == "extend" else (),
        constants=tuple(sorted(window - 1 for window in windows)),
        loss=None,
    )


def _accepted(subject: Subject) -> set[str]:
    """Names of forward's arguments, of a transformers model that generates from token ids."""
    accepted = _arguments_of(subject.module)
    config = getattr(subject.module, "config", None)
    reason = ""
    if not getattr(subject.module, "can_generate", lambda: False)():
        reason = f"`{type(subject.module).__name__}` is no model that generates"
    elif "use_cache" not in accepted or not accepted & {"cache", "past_key_values"}:
        reason = "its forward takes no `cache` and `use_cache`"
    elif getattr(config, "is_encoder_decoder", False):
        if not {"encoder_outputs", "decoder_input_ids"} <= accepted:
            reason = "its forward takes no `encoder_outputs` and `decoder_input_ids`"
    elif "seq" not in subject.sizes or "input_ids" not in accepted:
        reason = "its input is not a sequence of token ids"
    if reason:
        raise TorchperfError(
            f"`{subject.name}` cannot be captured as it generates",
            facts=[("reason", reason)],
            hint="give a transformers causal language model, or capture one pass with mode `forward`",
        )
    return accepted


def _arguments_of(module: Any) -> set[str]:
    """Names that forward takes, those among them that it hands on to the model within as `**kwargs`."""
    parameters = inspect.signature(module.forward).parameters
    inner = getattr(module, "base_model", module)
    inner = getattr(module, "language_model", module) if inner is module else inner
    passes_on = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    return set(parameters) | (_arguments_of(inner) if passes_on and inner is not module else set())


class _Inputs:
    """sizes -> arguments of forward in one mode, with a cache."""

    def __init__(self, subject: Subject, accepted: set[str], mode: str) -> None:
        self.module: Any = subject.module
        self.name, self.mode = subject.name, mode
        self.cache_name = "cache" if "cache" in accepted else "past_key_values"
        self.last_only = "logits_to_keep" in accepted
        self.rows = recipes.rows_of(subject.module)

    def __call__(self, sizes: Mapping[str, int]) -> Arguments:
        cache = self.cache()
        if self.mode != "prefill" and _linear(cache):
            self._warm(cache, sizes["batch"])
        return (), self._arguments(cache, sizes["batch"], sizes.get("seq", 1))

    def windows(self) -> set[int]:
        """Windows of the layers of the cache."""
        cache = self.cache()
        layers = cache.layers if hasattr(cache, "layers") else cache.self_attention_cache.layers
        found = (getattr(layer, "sliding_window", None) for layer in layers)
        return {int(window) for window in found if window}

    def cache(self) -> Any:
        """The cache that transformers makes for this model, empty."""
        from transformers import DynamicCache

        from .cache_op import refuse_unknown

        try:
            cache = DynamicCache(config=recipes.config_of_cache(self.module))
        except (KeyError, AttributeError) as error:
            raise TorchperfError(
                f"transformers makes no cache for `{self.name}`",
                facts=[("reason", f"{type(error).__name__}: {error}")],
                hint="capture one pass without a cache with mode `forward`",
            ) from error
        refuse_unknown(cache, self.name)
        return cache

    def _arguments(self, cache: Any, batch: int, tokens: int) -> dict[str, Any]:
        rows = batch * self.rows
        given = {"input_ids": _ids(rows, tokens), self.cache_name: cache, "use_cache": True}
        return {**given, "logits_to_keep": 1} if self.last_only else given

    def _warm(self, cache: Any, batch: int) -> None:
        """Fill the states of `cache`, which no one but the model knows the shapes of, by a short prefill."""
        from .patches import capture_patches

        with capture_patches(), torch.no_grad():
            self.module(**self._arguments(cache, batch, _WARM))


class _EncoderDecoder(_Inputs):
    """As `_Inputs`, for a model whose encoder's keys and values are cached too.

    prefill   the encoder over the source (`seq` tokens, or all of a fixed source), and the first token of the answer
    decode    one more token; the encoder does not run again
    """

    def __init__(self, subject: Subject, accepted: set[str], mode: str) -> None:
        super().__init__(subject, accepted, mode)
        self.source = subject.arguments

    def __call__(self, sizes: Mapping[str, int]) -> Arguments:
        cache, batch = self.cache(), sizes["batch"]
        given: dict[str, Any] = {"decoder_input_ids": _ids(batch), self.cache_name: cache, "use_cache": True}
        if self.mode == "prefill":
            _, source = self.source({"seq": 1, **sizes})
            return (), {**source, **given}
        given["encoder_outputs"] = self._encoded(sizes)
        self._fill(given, sizes)
        return (), {**given, "decoder_input_ids": _ids(batch)}

    def cache(self) -> Any:
        """Empty caches of the decoder's own tokens and of the encoder's."""
        from transformers import EncoderDecoderCache

        own, cross = super().cache(), super().cache()
        for layer in cross.layers:
            layer.is_cross = True
        return EncoderDecoderCache(own, cross)

    def _encoded(self, sizes: Mapping[str, int]) -> Any:
        """What the encoder hands on: [batch, tokens, width]."""
        from transformers.modeling_outputs import BaseModelOutput

        config = self.module.config
        tokens = sizes.get("seq", getattr(config, "max_source_positions", 0))
        dtype = next(self.module.parameters()).dtype
        return BaseModelOutput(torch.empty((sizes["batch"], tokens, config.d_model), dtype=dtype, device="meta"))

    def _fill(self, given: dict[str, Any], sizes: Mapping[str, int]) -> None:
        """Fill the encoder's part of the cache by an earlier step, whose recording is thrown away."""
        from .cache_op import caching
        from .patches import capture_patches
        from .record import Recorder

        recorder = Recorder(self.module, {})
        with capture_patches(), caching(recorder, self.module, "prefill", sizes), recorder, torch.no_grad():
            self.module(**given)


def _encoder_decoder(subject: Subject, arguments: _Inputs, mode: str) -> Subject:
    """Sizes of an encoder-decoder: `seq` tokens of the source where it is text, `kv` of the answer."""
    if mode == "extend":
        raise TorchperfError(
            f"`{subject.name}` is an encoder-decoder: its answer is made token by token", hint="use mode `decode`"
        )
    text = getattr(subject.module, "main_input_name", "input_ids") == "input_ids"
    limit = subject.limits.get("seq")
    sizes, limits = {"batch": subject.sizes["batch"]}, {}
    if text:
        sizes["seq"] = subject.sizes["seq"]
        limits.update({} if limit is None else {"seq": limit})
    if mode == "decode":
        sizes["kv"] = min(DEFAULT_KV, limit - 1) if limit else DEFAULT_KV
        limits.update({} if limit is None else {"kv": limit - 1})
    return replace(subject, arguments=arguments, sizes=sizes, limits=limits, breaks=(), loss=None)


def _ids(batch: int, tokens: int = 1) -> torch.Tensor:
    return torch.empty((batch, tokens), dtype=torch.long, device="meta")


def _linear(cache: Any) -> bool:
    from transformers.cache_utils import LinearAttentionCacheLayerMixin

    return any(isinstance(layer, LinearAttentionCacheLayerMixin) for layer in cache.layers)


def entries(cached: Mapping[str, Any], batch: int, layers: dict[str, str]) -> tuple[CacheEntry, ...]:
    """What was cached, tensors of one module together, modules that are alike together."""
    from .record import DTYPES

    index = {unit: int(unit.rpartition(".")[2]) for unit in layers}
    sums: dict[tuple[str, str, str], list[Any]] = {}
    for item in cached.values():
        key = (item.module, item.kind, DTYPES[item.tensor.dtype])
        shape = item.tensor.shape
        elements = item.tensor.numel() // batch // (1 if item.kind == "state" else shape[-2])
        known = sums.setdefault(key, [0, shape[1], item.window])
        known[0] += elements
        known[1] = min(known[1], shape[1])
    groups: dict[tuple[Any, ...], list[int]] = {}
    for i, ((module, kind, dtype), (elements, heads, window)) in enumerate(sums.items()):
        unit = next((u for u in _prefixes(module) if u in layers), "")
        starred = fold.starred(module, unit, layers)
        groups.setdefault((starred, kind, heads, elements, window, dtype), []).append(index.get(unit, i))
    return tuple(
        CacheEntry(module, tuple(sorted(numbers)), kind, heads, elements, window, dtype)
        for (module, kind, heads, elements, window, dtype), numbers in groups.items()
    )


def _prefixes(path: str) -> list[str]:
    parts = path.split(".")
    return [".".join(parts[:n]) for n in range(len(parts), 0, -1)]
