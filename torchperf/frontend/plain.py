"""Modules of no library: a live nn.Module and its inputs -> Subject."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from ..graph.errors import TorchperfError
from .meta_device import everything_on_meta
from .subject import Arguments, Subject, tensors_in

TOKEN_NAMES = ("input_ids", "idx", "ids", "tokens", "token_ids", "input", "inputs", "x", "src", "input_tokens")
TARGET_NAMES = ("labels", "targets", "target", "y")
_WIDE = (torch.float32, torch.float16, torch.float64)  # a precision gives bf16 values their type afterwards
_BATCH_NAMES = ("batch", "batch_size", "micro_batch", "b")
_SEQ_NAMES = ("seq", "seq_len", "sequence_length", "block_size", "t", "s")


def on_meta(module: nn.Module) -> nn.Module:
    """A copy on meta, in bf16 where the module is fp32; the caller's own module is left as it is."""
    memo: dict[int, Any] = {}
    for parameter in module.parameters():
        twin = nn.Parameter(torch.empty_like(parameter, device="meta"), requires_grad=parameter.requires_grad)
        memo[id(parameter)] = twin
    for buffer in module.buffers():
        memo[id(buffer)] = torch.empty_like(buffer, device="meta")
    try:
        with everything_on_meta():
            return copy.deepcopy(module, memo)
    except Exception as error:
        raise TorchperfError(
            f"`{type(module).__name__}` cannot be copied to the meta device",
            facts=[("reason", f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}")],
            hint="give a function that builds it, in a model.py with `build_model()`",
        ) from error


def as_bf16(module: nn.Module) -> nn.Module:
    """Floating-point parameters and buffers in bf16, whatever they were: the precision is chosen later."""
    for child in module.modules():
        for parameter in child._parameters.values():
            if parameter is not None and parameter.dtype in _WIDE:
                parameter.data = parameter.data.to(torch.bfloat16)
        for name, buffer in child._buffers.items():
            if buffer is not None and buffer.dtype in _WIDE:
                child._buffers[name] = buffer.to(torch.bfloat16)
    return module


def subject(module: nn.Module, inputs: Any, name: str, where: str = "") -> Subject:
    """The Subject of a module. `inputs` is a tensor, tuple, dict, a function that makes them, or None to guess."""
    if inputs is None:
        return _tokens(module, name, where)
    if callable(inputs) and not isinstance(inputs, torch.Tensor):
        return _from_function(module, inputs, name)
    return _from_example(module, inputs, name)


def as_arguments(inputs: Any) -> Arguments:
    """Whatever the user gave, as (args, kwargs) of forward with every tensor on meta and fp32 as bf16."""
    if isinstance(inputs, Mapping):
        return (), {str(key): _meta(value) for key, value in inputs.items()}
    if isinstance(inputs, (list, tuple)):
        if len(inputs) == 2 and isinstance(inputs[0], (list, tuple)) and isinstance(inputs[1], Mapping):
            return tuple(map(_meta, inputs[0])), {str(k): _meta(v) for k, v in inputs[1].items()}
        return tuple(map(_meta, inputs)), {}
    return (_meta(inputs),), {}


def _meta(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        dtype = torch.bfloat16 if value.dtype in _WIDE else value.dtype
        return torch.empty_strided(value.shape, value.stride(), dtype=dtype, device="meta").requires_grad_(
            value.requires_grad
        )
    if isinstance(value, Mapping):
        return {key: _meta(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return _like(value, [_meta(item) for item in value])
    return value


def _like(value: Any, items: list[Any]) -> Any:
    """A list or (named) tuple of the kind of `value`."""
    return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)


def _from_example(module: nn.Module, inputs: Any, name: str) -> Subject:
    """The first dim that all inputs share is the batch; dim 1 of integer inputs is the sequence."""
    example = as_arguments(inputs)
    tensors = [t for t in tensors_in(example).values() if t.dim() > 0]
    sizes: dict[str, int] = {}
    if tensors and len({t.shape[0] for t in tensors}) == 1:
        sizes["batch"] = int(tensors[0].shape[0])
        lengths = {int(t.shape[1]) for t in tensors if t.dim() > 1 and not t.is_floating_point()}
        if len(lengths) == 1:
            sizes["seq"] = lengths.pop()

    def resize(value: Any, at: Mapping[str, int]) -> Any:
        if isinstance(value, torch.Tensor) and value.dim() > 0 and "batch" in at:
            shape = list(value.shape)
            shape[0] = at["batch"]
            if "seq" in at and len(shape) > 1 and shape[1] == sizes["seq"]:
                shape[1] = at["seq"]
            return torch.empty(shape, dtype=value.dtype, device="meta").requires_grad_(value.requires_grad)
        if isinstance(value, Mapping):
            return {key: resize(item, at) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return _like(value, [resize(item, at) for item in value])
        return value

    def arguments(at: Mapping[str, int]) -> Arguments:
        return (resize(example[0], at), resize(example[1], at)) if at else example

    fixed = "" if sizes else "the inputs share no first dim that could be the batch"
    return Subject(name, module, arguments, sizes, fixed=fixed)


def _from_function(module: nn.Module, make: Callable[..., Any], name: str) -> Subject:
    """`get_inputs(batch, seq)` is asked for each size; `get_inputs()` gives an example."""
    keys = {}
    defaults = {}
    for parameter in inspect.signature(make).parameters.values():
        size = next((s for s, names in (("batch", _BATCH_NAMES), ("seq", _SEQ_NAMES)) if parameter.name in names), None)
        if size:
            keys[size] = parameter.name
            default = parameter.default
            defaults[size] = default if isinstance(default, int) else (1 if size == "batch" else 1024)
    if not keys:
        with everything_on_meta():
            return _from_example(module, make(), name)

    def arguments(at: Mapping[str, int]) -> Arguments:
        with everything_on_meta():
            return as_arguments(make(**{keys[size]: at[size] for size in keys}))

    return Subject(name, module, arguments, defaults)


def _tokens(module: nn.Module, name: str, where: str) -> Subject:
    """A module that takes token ids: it owns an embedding, and its one required argument is named like ids."""
    signature = inspect.signature(module.forward)
    parameters = [p for p in signature.parameters.values() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    required = [p.name for p in parameters if p.default is p.empty]
    optional = [p.name for p in parameters if p.default is not p.empty]
    embedded = any(isinstance(child, nn.Embedding) for child in module.modules())
    ids = [n for n in required if n in TOKEN_NAMES] or [n for n in optional if n in TOKEN_NAMES[:5]]
    rest = [n for n in required if n not in ids[:1] and n not in TARGET_NAMES]
    if not embedded or not ids or rest:
        raise TorchperfError(
            f"cannot make inputs for `{type(module).__name__}`",
            facts=[("forward", f"{signature}"), *([("in", where)] if where else [])],
            hint="define `get_inputs()` beside the model, returning the tensors that forward takes",
        )
    names = [ids[0], *(n for n in (*required, *optional) if n in TARGET_NAMES)][:2]
    limit = _position_limit(module)

    def arguments(at: Mapping[str, int]) -> Arguments:
        given = names if module.training else [n for n in names if n in required]
        return (), {n: torch.empty(at["batch"], at["seq"], dtype=torch.long, device="meta") for n in given}

    sizes = {"batch": 1, "seq": min(1024, limit) if limit else 1024}
    return Subject(name, module, arguments, sizes, {"seq": limit} if limit else {})


def _position_limit(module: nn.Module) -> int | None:
    """`config.block_size` and its like, where the module has one."""
    config = getattr(module, "config", None)
    for owner in (config, module):
        for key in ("block_size", "max_position_embeddings", "n_positions", "max_seq_len", "context_length", "n_ctx"):
            value = owner.get(key) if isinstance(owner, Mapping) else getattr(owner, key, None)
            if isinstance(value, int) and not isinstance(value, bool) and value > 1:
                return value
    return None
