"""Pixels, [batch, channels, height, width], or with a dim of frames or of tiles behind the batch."""

from __future__ import annotations

from typing import Any

import torch

from .made import Inputs, Model

_DEFAULT = 224
_TOKENS = ("image_token_id", "image_token_index")  # of a config whose images stand among the text


def side(model: Model, made: Inputs) -> tuple[int, int]:
    """Height and width that the vision tower takes."""
    owners = (model.vision, model.config, getattr(model.config, "backbone_config", None))
    size = next((s for owner in owners if (s := getattr(owner, "image_size", None))), None)
    if size is None:
        made.assumptions.append(f"the config names no image size: {_DEFAULT} x {_DEFAULT} stands in")
        size = _DEFAULT
    if isinstance(size, dict):
        size = (size["height"], size["width"])
    height, width = (size, size) if isinstance(size, int) else (int(size[0]), int(size[1]))
    return height, width


def add(model: Model, made: Inputs) -> None:
    """`pixel_values`, and the sizes that a model asks for beside them."""
    if "pixel_values" not in model.accepted or "pixel_values" in made.makers:
        return
    height, width = side(model, made)
    lead = _lead(model, made)
    if "image_sizes" in model.accepted and _needs_sizes(model):
        height, width = _with_sizes(model, made, height, width)
    channels = int(getattr(model.vision, "num_channels", None) or getattr(model.config, "num_channels", None) or 3)

    def make(at: Any) -> torch.Tensor:
        return torch.empty(at["batch"], *lead, channels, height, width, dtype=model.dtype, device="meta")

    made.makers["pixel_values"] = make
    if any(hasattr(model.config, name) for name in _TOKENS):
        made.assumptions.append(f"one image of {height} x {width} a sample, its tokens among the `seq`")


def _lead(model: Model, made: Inputs) -> tuple[int, ...]:
    """Dims between the batch and the channels."""
    if frames := getattr(model.config, "num_frames", None):
        return (int(frames),)
    if getattr(model.config, "image_grid_pinpoints", None):  # an image in tiles, and the whole of it made small
        return (5,)
    if "pixel_attention_mask" in model.accepted:  # images of a sample
        return (1,)
    return ()


def _needs_sizes(model: Model) -> bool:
    """Whether the model puts the parts of an image together by its size."""
    tiled = getattr(model.config, "image_grid_pinpoints", None)
    return bool(tiled) or getattr(model.vision, "model_type", "") == "pixtral"


def _with_sizes(model: Model, made: Inputs, height: int, width: int) -> tuple[int, int]:
    """The size of each image as numbers, which the model computes with."""
    patch = getattr(model.vision, "patch_size", None)
    tiles = 2 if getattr(model.config, "image_grid_pinpoints", None) else 1
    merge = getattr(model.config, "spatial_merge_size", 1)
    if isinstance(patch, int) and tiles == 1:
        height, width = (size - size % (patch * merge) for size in (height, width))
    numbers = [tiles * height, tiles * width]
    made.makers["image_sizes"] = lambda at: torch.tensor([numbers] * at["batch"])
    return height, width
