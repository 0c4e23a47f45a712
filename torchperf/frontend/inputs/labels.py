"""What a loss compares with. A model whose loss cannot be computed without data gives its outputs alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .made import Inputs, Model, ids

# a head's name ends in one of these -> why its loss is left out
_LEFT_OUT = {
    "ForCTC": "the CTC loss, which drops padding from the labels",
    "ForObjectDetection": "the loss, which matches boxes one to one on the host",
    "ForSegmentation": "the loss, which matches masks one to one on the host",
    "ForUniversalSegmentation": "the loss, which matches masks one to one on the host",
}


def add(model: Model, made: Inputs) -> None:
    """`labels`, `return_loss`, or the ids of a decoder where there is no loss to ask for."""
    if "return_loss" in model.accepted:
        made.makers["return_loss"] = lambda at: True
    if "labels" in model.accepted:
        why = next((why for end, why in _LEFT_OUT.items() if model.kind.endswith(end)), None)
        if why is not None:
            made.assumptions.append(f"left out: {why}")
        else:
            _labels(model, made)
    if "decoder_input_ids" in model.accepted and getattr(model.config, "is_encoder_decoder", False):
        _decoder(model, made)


def _labels(model: Model, made: Inputs) -> None:
    kind, config = model.kind, model.config
    if ("Classification" in kind and "Token" not in kind) or "MultipleChoice" in kind or "NextSentence" in kind:
        if getattr(config, "num_labels", 2) > 1 and getattr(config, "problem_type", None) is None:
            config.problem_type = "single_label_classification"
        make: Any = lambda at: ids(at["batch"])  # noqa: E731
    elif "SemanticSegmentation" in kind:
        pixels = made.makers["pixel_values"]
        make = lambda at: ids(at["batch"], *pixels(at).shape[-2:])  # noqa: E731
    elif "seq" in made.sizes:
        make = lambda at: ids(at["batch"], at["seq"])  # noqa: E731
    else:
        return
    made.makers["labels"] = make
    made.training.add("labels")


def _decoder(model: Model, made: Inputs) -> None:
    module, shifts = model.module, "labels" in made.makers

    def make(at: Mapping[str, int]) -> Any:
        return None if module.training and shifts else ids(at["batch"], at["seq"])

    made.makers["decoder_input_ids"] = make
