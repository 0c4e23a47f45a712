"""Token ids: of the model, and of the decoder of an encoder-decoder."""

from __future__ import annotations

from .made import DEFAULT_ANSWER, Inputs, Model, ids


def add(model: Model, made: Inputs) -> None:
    """`input_ids`, [batch, choices, seq] for a multiple choice, and what goes with them."""
    if "input_ids" in model.accepted:
        made.length(model.limit)
        if "MultipleChoice" in model.kind:
            made.makers["input_ids"] = lambda at: ids(at["batch"], 2, at["seq"])
        else:
            made.makers["input_ids"] = lambda at: ids(at["batch"], at["seq"])
    elif "decoder_input_ids" in model.accepted:
        made.length(model.limit, DEFAULT_ANSWER)
    if "token_type_ids" in model.accepted and getattr(model.config, "vision_config", None) is not None:
        made.makers["token_type_ids"] = lambda at: ids(at["batch"], at["seq"])  # which tokens are of an image
