"""transformers' cache while a model is captured: written in place and never copied, as a serving engine keeps it.

transformers appends to its cache with `cat`, which reads and writes the whole of it for each token. Here a layer's
cache is one storage of kind "cache" ("state" where it does not grow) with room for what comes:

    prefill   keys and values of the prompt are copied into it once; attention reads them where they were made
    decode    `kv` tokens lie in it already; the new one is copied behind them, and attention reads the whole
    extend    as decode, with many new tokens

A layer with a window keeps the last `window` tokens, so its cache has min(kv, window - 1) + 1 places in decode. MLA's
latent and its rotary key are one storage, and in decode its projections are absorbed (absorbed_attention.py); in
prefill and extend its keys and values are expanded, as engines do for many tokens.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes
from transformers import cache_utils

from ..graph.errors import TorchperfError
from .record import Recorder


@dataclass(frozen=True, slots=True)
class Cached:
    """One tensor that a module keeps: `kind` as of graph/cache.py, `window` 0 where all tokens are kept."""

    module: str
    kind: str
    tensor: Tensor
    window: int = 0


@dataclass(slots=True)
class CacheRun:
    """What one recorded run caches. `kv` is the number of tokens that were there before, 0 in prefill."""

    recorder: Recorder
    module: nn.Module
    mode: str
    kv: int
    cached: dict[str, Cached] = field(default_factory=dict)
    latents: dict[str, Tensor] = field(default_factory=dict)

    def update(self, layer: Any, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Write key [.., S, D] and value [.., S, Dv]; what attention is to read comes back."""
        window = int(getattr(layer, "sliding_window", 0) or 0)
        new = key.shape[-2]
        before = min(self.kv, window - 1) if window else self.kv
        places = before + new if self.mode != "prefill" else min(new, window) if window else new
        module, kind = self.recorder.module, "kv"
        if getattr(layer, "is_cross", False):
            places, kind, layer.filled_by = new, "cross", module
        if is_latent(self.module.get_submodule(module)):
            store = self._place(module, "latent", "latent", key, places, key.shape[-1] + value.shape[-1], window)
            kept = store[..., : key.shape[-1]], store[..., key.shape[-1] :]
            self.latents[module] = store
        else:
            kept = tuple(  # type: ignore[assignment]
                self._place(module, name, kind, t, places, t.shape[-1], window)
                for name, t in (("keys", key), ("values", value))
            )
        written = min(new, places)
        for store, tensor in zip(kept, (key, value), strict=True):
            store.narrow(-2, places - written, written).copy_(tensor.narrow(-2, new - written, written))
        layer.keys, layer.values, layer.is_initialized = *kept, True
        return (key, value) if self.mode == "prefill" else kept

    def _place(
        self, module: str, name: str, kind: str, like: Tensor, places: int, width: int, window: int
    ) -> Tensor:  # fmt: skip
        with _disable_current_modes():  # it was there before: no operator makes it
            store = torch.empty((*like.shape[:-2], places, width), dtype=like.dtype, device=like.device)
        return self._keep(f"{module}.{name}", module, kind, store, window)

    def indexer(self, key: Tensor) -> Tensor:
        """Write the keys [B, S, D] of a sparse attention's indexer; all that are kept come back."""
        new = key.shape[1]
        places = self.kv + new
        store = self._place(self.recorder.module, "indexer", "latent", key[:, None], places, key.shape[-1], 0)
        store.narrow(-2, places - new, new).copy_(key[:, None])
        return key if self.mode == "prefill" else store[:, 0]

    def state(self, name: str, tensor: Tensor | None) -> None:
        """A recurrent or convolution state that the module at work reads or writes."""
        if tensor is not None:
            self._keep(f"{self.recorder.module}.{name}", self.recorder.module, "state", tensor, 0)

    def begin(self, cache: Any) -> None:
        """What lies in a cache before the run: keys and values of an encoder's tokens."""
        for layer in cache.cross_attention_cache.layers if hasattr(cache, "is_updated") else ():
            path = getattr(layer, "filled_by", "")
            if path:
                self._keep(f"{path}.keys", path, "cross", layer.keys, 0)
                self._keep(f"{path}.values", path, "cross", layer.values, 0)

    def _keep(self, name: str, module: str, kind: str, tensor: Tensor, window: int) -> Tensor:
        known = self.cached.get(name)
        if known is None or known.tensor is not tensor:
            self.cached[name] = Cached(module, kind, tensor, window)
            self.recorder.mark(tensor, "state" if kind == "state" else "cache", name)
        return tensor


_running: list[CacheRun] = []


def running() -> CacheRun | None:
    """The run that is being recorded, in a mode that caches."""
    return _running[-1] if _running else None


def is_latent(module: nn.Module) -> bool:
    """Whether a module is latent attention (MLA) as transformers writes it: it expands what it cached."""
    return hasattr(module, "expand_kv") and hasattr(module, "kv_b_proj")


def refuse_unknown(cache: Any, model: str) -> None:
    """Raise TorchperfError where a layer of the cache is of a kind that is not written in place here."""
    parts = (cache.self_attention_cache, cache.cross_attention_cache) if hasattr(cache, "is_updated") else (cache,)
    for layer in (layer for part in parts for layer in part.layers):
        known = type(layer).__module__ == cache_utils.__name__
        if not known:
            raise TorchperfError(
                f"`{model}` caches in a way that has no rule here",
                facts=[("cache layer", type(layer).__name__)],
                hint="its prefill without a cache can be captured with mode `forward`",
            )


@contextlib.contextmanager
def caching(recorder: Recorder, module: nn.Module, mode: str, sizes: Mapping[str, int]) -> Iterator[CacheRun | None]:
    """transformers' cache layers write in place for the length of a run; nothing in modes without a cache."""
    if mode in ("train", "forward"):
        yield None
        return
    run = CacheRun(recorder, module, mode, sizes.get("kv", 0))
    with contextlib.ExitStack() as stack:
        _running.append(run)
        stack.callback(_running.pop)
        for owner in (cache_utils.DynamicLayer, cache_utils.DynamicSlidingWindowLayer):
            _replace(stack, owner, "update", _update)
            _replace(stack, owner, "get_seq_length", lambda _layer: run.kv)
            _replace(stack, owner, "get_mask_sizes", _mask_sizes)
        _replace(stack, cache_utils.DynamicIndexedLayer, "update_indexer", lambda _layer, key: run.indexer(key))
        for part in ("conv", "recurrent"):
            for verb in ("get", "update"):
                _watch(stack, f"{verb}_{part}_state", part)
        if mode == "decode":
            for latent in filter(is_latent, module.modules()):
                latent.expand_kv = lambda latent, rotary: (latent, rotary)  # type: ignore[assignment]
                stack.callback(delattr, latent, "expand_kv")
        yield run


def _update(layer: Any, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
    return _running[-1].update(layer, key_states, value_states)


def _mask_sizes(layer: Any, query_length: int) -> tuple[int, int]:
    """(keys, position of the first) that a mask covers."""
    kv, window = _running[-1].kv, int(getattr(layer, "sliding_window", 0) or 0)
    kept = min(kv, window - 1) if window else kv
    return kept + query_length, kv - kept


def _watch(stack: contextlib.ExitStack, method: str, part: str) -> None:
    """Tell the run of the state that a method of the cache reads or writes."""
    original = getattr(cache_utils.Cache, method)

    def watched(cache: Any, *args: Any, **kwargs: Any) -> Any:
        out = original(cache, *args, **kwargs)
        index = kwargs["layer_idx"] if "layer_idx" in kwargs else args[int(method.startswith("update"))]
        for i, tensor in getattr(cache.layers[index], f"{part}_states").items():
            _running[-1].state(f"{part}_state" + (f"_{i}" if i else ""), tensor)
        return out

    _replace(stack, cache_utils.Cache, method, watched)


def _replace(stack: contextlib.ExitStack, owner: Any, name: str, value: Any) -> None:
    stack.callback(setattr, owner, name, getattr(owner, name))
    setattr(owner, name, value)
