"""A time series: values of the past, [batch, length, channels], and in training those of the future."""

from __future__ import annotations

from typing import Any

import torch

from .made import Inputs, Model


def add(model: Model, made: Inputs) -> None:
    """`past_values` and `future_values` of a model whose config tells both lengths."""
    config = model.config
    context, ahead = getattr(config, "context_length", None), getattr(config, "prediction_length", None)
    channels = getattr(config, "num_input_channels", None)
    if "past_values" not in model.accepted or not (context and channels):
        return

    def values(length: int) -> Any:
        return lambda at: torch.empty(at["batch"], length, channels, dtype=model.dtype, device="meta")

    made.makers["past_values"] = values(int(context))
    if "future_values" in model.accepted and ahead:
        made.makers["future_values"] = values(int(ahead))
        made.training.add("future_values")
