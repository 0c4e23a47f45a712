"""transformers' models: a config -> Subject. Real model code, no weights."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import torch
import transformers
from torch import nn

from ..graph.errors import TorchperfError
from . import recipes, transformers_patches
from .inputs import inputs_of
from .subject import Subject

_POSITIONS = ("max_position_embeddings", "n_positions", "max_target_positions", "max_sequence_length")
_ROTARY = ("rope_theta", "rope_parameters", "rope_scaling")
_SHORTER = {"prophetnet": 1}  # model types whose table of relative positions is shorter than that of absolute ones
_LAYERDROP = ("layerdrop", "encoder_layerdrop", "decoder_layerdrop")
_CHUNKS = ("chunk_size", "mamba_chunk_size")


def from_config(raw: Mapping[str, Any], name: str) -> Subject:
    """The Subject of a config.json's contents; raises TorchperfError where transformers knows no such model."""
    contents = {key: value for key, value in raw.items() if key not in ("torch_dtype", "dtype", "quantization_config")}
    kind = contents.pop("model_type", None)
    architectures = contents.pop("architectures", None) or []
    if not isinstance(kind, str) or kind not in transformers.CONFIG_MAPPING:
        raise TorchperfError(
            f"transformers knows no model type `{kind}`",
            facts=[("in", name), ("transformers", transformers.__version__)],
            hint="give a config.json with a `model_type` of this version, or a model.py",
        )
    contents.pop("auto_map", None)
    contents, told = recipes.filled(kind, contents)
    try:
        config = transformers.AutoConfig.for_model(kind, **contents)
    except Exception as error:
        raise TorchperfError(
            f"transformers refuses the config of `{name}`", facts=[("reason", _line(error))], hint="mend the config"
        ) from error
    subject = from_config_object(config, name, architectures[0] if architectures else None)
    subject.assumptions[:0] = told
    return subject


def from_config_object(config: Any, name: str, architecture: str | None = None) -> Subject:
    """The Subject of a transformers config object."""
    cls = getattr(transformers, architecture, None) if architecture else None
    named = cls is not None
    if cls is None:
        cls = recipes.class_without_packages(config) or _mapped_class(config)
    if cls is None:
        raise TorchperfError(
            f"no model class for `{architecture or config.model_type}` in transformers {transformers.__version__}",
            facts=[("in", name)],
            hint="set `architectures` in the config to a class that transformers has",
        )
    config, told = recipes.part_for(cls, config)
    subject = from_module(build(cls, config), name, text_alone=not named)
    subject.assumptions[:0] = told
    for key in ("decoder_start_token_id", "pad_token_id") if getattr(config, "is_encoder_decoder", False) else ():
        if getattr(config, key, None) is None:
            setattr(config, key, 0)
            subject.assumptions.append(f"the config names no {key}: 0 stands in")
    return subject


def build(cls: Any, config: Any) -> nn.Module:
    """The model on meta in bf16, with our attention where the model lets us choose it."""
    transformers_patches.register()
    if hasattr(config, "use_cache"):
        config.use_cache = False
    errors: list[Exception] = []
    for attention in recipes.attention_of(config, (transformers_patches.NAME, "sdpa", "eager")):
        try:
            with torch.device("meta"):
                made = cls._from_config(config, dtype=torch.bfloat16, attn_implementation=attention)
            return _as_loaded(made)
        except (KeyError, ValueError, ImportError) as error:
            errors.append(error)
        except Exception as error:
            errors.append(error)
            break
    raise TorchperfError(
        f"`{cls.__name__}` cannot be built from this config",
        facts=[("reason", _line(errors[0]))],
        hint="mend the config",
    ) from errors[0]


def _as_loaded(module: Any) -> nn.Module:
    """Parameters that a constructor made on the host or in fp32, as loading a checkpoint would leave them."""
    kept = (*(module._keep_in_fp32_modules or ()), *(module._keep_in_fp32_modules_strict or ()))
    twins: dict[int, nn.Parameter] = {}
    for path, child in module.named_modules():
        for name, parameter in child._parameters.items():
            if parameter is None or (parameter.dtype is torch.bfloat16 and parameter.is_meta):
                continue
            wide = parameter.dtype is torch.float32 and not any(part in f"{path}.{name}" for part in kept)
            dtype = torch.bfloat16 if wide else parameter.dtype
            twin = nn.Parameter(torch.empty_like(parameter, dtype=dtype, device="meta"), parameter.requires_grad)
            child._parameters[name] = twins.setdefault(id(parameter), twin)
    return module  # type: ignore[no-any-return]


def _layers_kept(module: Any) -> list[str]:
    """Switch off what leaves out whole layers at random, and tell so: a capture must not depend on a draw."""
    found: dict[str, float] = {}
    for owner in (*module.modules(), *(child.config for child in module.modules() if hasattr(child, "config"))):
        for key in _LAYERDROP:
            if isinstance(value := vars(owner).get(key), float) and value > 0:
                found[key] = value
                setattr(owner, key, 0.0)
    return [f"every layer runs each step, where `{key}` {value:g} leaves out some" for key, value in found.items()]


def choose_attention(module: Any) -> None:
    """Ask a model that stands already for our attention; one that has its own code keeps it."""
    with contextlib.suppress(Exception):
        module.set_attn_implementation(transformers_patches.NAME)


def from_module(module: Any, name: str, text_alone: bool = False) -> Subject:
    """The Subject of a transformers model that stands already (on meta).

    text_alone    a language model that may take images or sound gets none
    """
    config = module.config
    if hasattr(config, "use_cache"):
        config.use_cache = False
    text = config.get_text_config(decoder=True) if hasattr(config, "get_text_config") else config
    limit = _position_limit(module, text)
    module.config.return_dict = True
    made = inputs_of(module, limit, text_alone)
    recipes.add_inputs(module, made)
    return Subject(
        name=name,
        module=module,
        own_code=False,
        arguments=made.arguments(module),
        sizes=made.sizes,
        limits=made.limits,
        breaks=tuple(sorted({v for key in _CHUNKS if isinstance(v := getattr(text, key, None), int) and v > 1})),
        config={k: v for k, v in text.to_dict().items() if isinstance(v, (int, float, str, bool)) and k[0] != "_"},
        tp_plan=_tp_plan(module, config, text),
        assumptions=[*made.assumptions, *_layers_kept(module)],
    )


def _position_limit(module: nn.Module, text: Any) -> int | None:
    """The positions that a model has: of its table where it learned one, of its config where they are rotary.

    A table with a padding index starts behind it. A model with neither (relative positions, a scan) has no limit.
    """
    limit = next((int(v) for key in _POSITIONS if isinstance(v := getattr(text, key, None), int) and v > 0), None)
    if limit is None:
        return None
    for child in module.modules():
        if isinstance(child, nn.Embedding) and limit <= child.num_embeddings <= limit + 8:
            first = child.padding_idx + 1 if child.padding_idx is not None and child.num_embeddings == limit else 0
            return limit - first - _SHORTER.get(getattr(text, "model_type", ""), 0)
    return limit if any(getattr(text, key, None) is not None for key in _ROTARY) else None


def _tp_plan(module: Any, config: Any, text: Any) -> dict[str, str]:
    """The plan of the config with what the class adds to it (embedding, head); empty where the config has none."""
    if not any(getattr(part, "base_model_tp_plan", None) for part in (config, text)):
        return {}
    return {str(name): str(style) for name, style in (getattr(module, "_tp_plan", None) or {}).items()}


def _mapped_class(config: Any) -> Any:
    for mapping in (
        transformers.MODEL_FOR_CAUSAL_LM_MAPPING,
        transformers.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING,
        transformers.MODEL_FOR_MASKED_LM_MAPPING,
        transformers.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING,
        transformers.MODEL_MAPPING,
    ):
        if type(config) in mapping:
            found = mapping[type(config)]
            return found[0] if isinstance(found, tuple) else found
    return None


def _line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
