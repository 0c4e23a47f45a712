"""A spectrogram, [batch, mel bins, frames] or [batch, frames, mel bins], or a waveform [batch, samples]."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .made import Inputs, Model

_SECONDS = 10
_RATE = 16000  # samples a second
_MASKS = frozenset({"input_features_mask", "feature_attention_mask"})  # frames that are no padding, to be counted
_FRAMES = 100  # of a spectrogram a second


def add(model: Model, made: Inputs) -> None:
    """`input_features` or `input_values` of one recording a sample."""
    if "input_features" in model.accepted:
        made.makers["input_features"] = _features(model, made)
    elif "input_values" in model.accepted:
        made.makers["input_values"] = _values(model, made)
    if "input_features" in made.makers:
        features = made.makers["input_features"]
        for name in sorted(_MASKS & model.accepted):
            made.makers[name] = lambda at: torch.ones(at["batch"], features(at).shape[-1], dtype=torch.long)
    if "is_longer" in model.accepted:
        made.makers["is_longer"] = lambda at: torch.empty(at["batch"], 1, dtype=torch.bool, device="meta")


def _features(model: Model, made: Inputs) -> Callable[[Any], torch.Tensor]:
    config = model.audio
    bins = int(getattr(config, "num_mel_bins", None) or getattr(config, "input_feat_per_channel", None) or 80)
    if getattr(config, "spec_size", None):  # an image of [channels, frames, bins]
        frames = int(config.spec_size) * int(config.spec_size) // bins
        return _floats(model, 1, frames, bins)
    frames = 2 * int(getattr(config, "max_source_positions", 0) or 0)
    if frames and hasattr(config, "num_mel_bins"):
        return _floats(model, bins, frames)
    frames = _SECONDS * _FRAMES
    made.assumptions.append(f"a recording of {_SECONDS} s: {frames} frames")
    return _floats(model, frames, bins)


def _values(model: Model, made: Inputs) -> Callable[[Any], torch.Tensor]:
    config = model.config
    if hasattr(config, "max_length") and hasattr(config, "num_mel_bins"):
        return _floats(model, int(config.max_length), int(config.num_mel_bins))
    made.assumptions.append(f"a recording of {_SECONDS} s: {_SECONDS * _RATE} samples")
    return _floats(model, _SECONDS * _RATE)


def _floats(model: Model, *shape: int) -> Callable[[Any], torch.Tensor]:
    return lambda at: torch.empty(at["batch"], *shape, dtype=model.dtype, device="meta")
