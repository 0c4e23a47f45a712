"""Images as patches packed one behind the other, [patches, channels * frames * side * side], and the grid of each.

The model computes with the grid, so it is a tensor on the host whose numbers are real. The rotary positions of text
and image are made from token types by a search over them: they are given as the tensor that the search would make.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from .made import Inputs, Model, ids

_SIDE = 448  # pixels; a multiple of patch times merge of every model that packs its patches


def add(model: Model, made: Inputs) -> None:
    """`pixel_values` and `image_grid_thw` of one square image a sample, and `position_ids` [3, batch, seq]."""
    if "spatial_shapes" in model.accepted:
        _padded(model, made)
    if "image_grid_thw" not in model.accepted or "input_ids" not in made.makers:
        return
    vision = model.vision
    patch, frames = int(vision.patch_size), int(getattr(vision, "temporal_patch_size", 1))
    merge = int(getattr(vision, "spatial_merge_size", 1))
    rows = _SIDE // (patch * merge) * merge
    channels = int(getattr(vision, "in_channels", None) or getattr(vision, "in_chans", None) or 3)
    width = channels * frames * patch * patch

    def pixels(at: Any) -> torch.Tensor:
        return torch.empty(at["batch"] * rows * rows, width, dtype=model.dtype, device="meta")

    made.makers["pixel_values"] = pixels
    made.makers["image_grid_thw"] = lambda at: torch.tensor([[1, rows, rows]] * at["batch"])
    made.makers["position_ids"] = lambda at: ids(3, at["batch"], at["seq"])
    tokens = rows * rows // (merge * merge)
    made.assumptions.append(
        f"one image of {rows * patch} x {rows * patch} a sample: {rows} x {rows} patches, {tokens} of the `seq` tokens"
    )


def _padded(model: Model, made: Inputs) -> None:
    """Patches of one image a sample, [batch, patches, channels * side * side], all of them real (SigLIP 2)."""
    vision = model.vision
    rows = math.isqrt(int(vision.num_patches))
    width = int(vision.num_channels) * int(vision.patch_size) ** 2
    patches = rows * rows
    made.makers["pixel_values"] = lambda at: torch.empty(at["batch"], patches, width, dtype=model.dtype, device="meta")
    made.makers["pixel_attention_mask"] = lambda at: ids(at["batch"], patches)
    made.makers["spatial_shapes"] = lambda at: torch.tensor([[rows, rows]] * at["batch"])
