"""transformers' models: a config -> Subject. Real model code, no weights."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Mapping
from typing import Any

import torch
import transformers
from torch import nn

from ..graph.errors import TorchperfError
from . import transformers_patches
from .subject import Arguments, Subject

DEFAULT_SEQ = 4096
_POSITIONS = ("max_position_embeddings", "n_positions", "max_target_positions", "max_sequence_length")
_ROTARY = ("rope_theta", "rope_parameters", "rope_scaling")
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
    try:
        config = transformers.AutoConfig.for_model(kind, **contents)
    except Exception as error:
        raise TorchperfError(
            f"transformers refuses the config of `{name}`", facts=[("reason", _line(error))], hint="mend the config"
        ) from error
    return from_config_object(config, name, architectures[0] if architectures else None)


def from_config_object(config: Any, name: str, architecture: str | None = None) -> Subject:
    """The Subject of a transformers config object."""
    cls = getattr(transformers, architecture, None) if architecture else None
    if cls is None:
        cls = _mapped_class(config)
    if cls is None:
        raise TorchperfError(
            f"no model class for `{architecture or config.model_type}` in transformers {transformers.__version__}",
            facts=[("in", name)],
            hint="set `architectures` in the config to a class that transformers has",
        )
    subject = from_module(build(cls, config), name)
    if getattr(config, "is_encoder_decoder", False) and getattr(config, "decoder_start_token_id", None) is None:
        config.decoder_start_token_id = 0
        subject.assumptions.append("the config names no decoder_start_token_id: 0 stands in")
    return subject


def build(cls: Any, config: Any) -> nn.Module:
    """The model on meta in bf16, with our attention where the model lets us choose it."""
    transformers_patches.register()
    if hasattr(config, "use_cache"):
        config.use_cache = False
    errors: list[Exception] = []
    for attention in (transformers_patches.NAME, "sdpa", "eager"):
        try:
            with torch.device("meta"):
                return cls._from_config(  # type: ignore[no-any-return]
                    config, dtype=torch.bfloat16, attn_implementation=attention
                )
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


def choose_attention(module: Any) -> None:
    """Ask a model that stands already for our attention; one that has its own code keeps it."""
    with contextlib.suppress(Exception):
        module.set_attn_implementation(transformers_patches.NAME)


def from_module(module: Any, name: str) -> Subject:
    """The Subject of a transformers model that stands already (on meta)."""
    config = module.config
    if hasattr(config, "use_cache"):
        config.use_cache = False
    text = config.get_text_config(decoder=True) if hasattr(config, "get_text_config") else config
    limit = _position_limit(module, text)
    module.config.return_dict = True
    main = getattr(module, "main_input_name", "input_ids")
    makers = {"input_ids": _text, "pixel_values": _image, "input_features": _speech, "input_values": _waveform}
    if main not in makers:
        raise TorchperfError(
            f"cannot make inputs for `{type(module).__name__}`",
            facts=[("main input", main), ("forward", str(inspect.signature(module.forward)))],
            hint="write a model.py with `get_inputs()`",
        )
    accepted = set(inspect.signature(module.forward).parameters)
    subject = Subject(
        name=name,
        module=module,
        own_code=False,
        arguments=makers[main](module, config, text, accepted),
        sizes={"batch": 1},
        breaks=tuple(sorted({v for key in _CHUNKS if isinstance(v := getattr(text, key, None), int) and v > 1})),
        config={k: v for k, v in text.to_dict().items() if isinstance(v, (int, float, str, bool)) and k[0] != "_"},
        tp_plan=_tp_plan(module, config, text),
    )
    if main == "input_ids" or (main == "input_features" and "labels" in accepted):
        subject.sizes["seq"] = min(DEFAULT_SEQ, limit) if limit else DEFAULT_SEQ
        if limit:
            subject.limits["seq"] = limit
    return subject


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
            return limit - first
    return limit if any(getattr(text, key, None) is not None for key in _ROTARY) else None


def _tp_plan(module: Any, config: Any, text: Any) -> dict[str, str]:
    """The plan of the config with what the class adds to it (embedding, head); empty where the config has none."""
    if not any(getattr(part, "base_model_tp_plan", None) for part in (config, text)):
        return {}
    return {str(name): str(style) for name, style in (getattr(module, "_tp_plan", None) or {}).items()}


def _ids(*shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.long, device="meta")


def _text(module: Any, config: Any, text: Any, accepted: set[str]) -> Any:
    classes = getattr(config, "num_labels", 2)

    def arguments(sizes: Mapping[str, int]) -> Arguments:
        batch, seq = sizes["batch"], sizes["seq"]
        inputs: dict[str, Any] = {"input_ids": _ids(batch, seq)}
        kind = type(module).__name__
        if module.training and "labels" in accepted:
            single = "SequenceClassification" in kind or "MultipleChoice" in kind
            inputs["labels"] = _ids(batch) if single else _ids(batch, seq)
            if single and classes > 1 and getattr(config, "problem_type", None) is None:
                config.problem_type = "single_label_classification"
        elif getattr(config, "is_encoder_decoder", False) and "decoder_input_ids" in accepted:
            inputs["decoder_input_ids"] = _ids(batch, seq)
        return (), inputs

    return arguments


def _image(module: Any, config: Any, text: Any, accepted: set[str]) -> Any:
    def arguments(sizes: Mapping[str, int]) -> Arguments:
        size = getattr(config, "image_size", None) or 224
        height, width = (size, size) if isinstance(size, int) else tuple(size)
        channels = getattr(config, "num_channels", 3)
        dtype = next(module.parameters()).dtype
        pixels = torch.empty(sizes["batch"], channels, height, width, dtype=dtype, device="meta")
        inputs: dict[str, Any] = {"pixel_values": pixels}
        if module.training and "labels" in accepted and "Classification" in type(module).__name__:
            inputs["labels"] = _ids(sizes["batch"])
            config.problem_type = "single_label_classification"
        return (), inputs

    return arguments


def _speech(module: Any, config: Any, text: Any, accepted: set[str]) -> Any:
    def arguments(sizes: Mapping[str, int]) -> Arguments:
        frames = 2 * getattr(config, "max_source_positions", 1500)
        dtype = next(module.parameters()).dtype
        features = torch.empty(sizes["batch"], config.num_mel_bins, frames, dtype=dtype, device="meta")
        inputs: dict[str, Any] = {"input_features": features}
        if "labels" in accepted and module.training:
            inputs["labels"] = _ids(sizes["batch"], sizes["seq"])
        elif "decoder_input_ids" in accepted:
            inputs["decoder_input_ids"] = _ids(sizes["batch"], sizes["seq"])
        return (), inputs

    return arguments


def _waveform(module: Any, config: Any, text: Any, accepted: set[str]) -> Any:
    def arguments(sizes: Mapping[str, int]) -> Arguments:
        dtype = next(module.parameters()).dtype
        return (), {"input_values": torch.empty(sizes["batch"], 16000, dtype=dtype, device="meta")}

    return arguments


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
