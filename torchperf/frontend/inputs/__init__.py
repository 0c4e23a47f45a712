"""A transformers model -> inputs that its forward takes, made from its config; one kind of input a file.

text      token ids of the model, of its decoder, and labels
image     pixels of a vision tower, of a frame or of several
grid      patches of images packed one behind the other, with the grid that each has (Qwen-VL and its kin)
sound     features of a spectrogram, or a waveform
series    values of a time series
labels    what a head's loss compares with
"""

from __future__ import annotations

import inspect
from typing import Any

from ...graph.errors import TorchperfError
from . import grid, image, labels, series, sound, text
from .made import Inputs, Model

__all__ = ["HINT", "Inputs", "inputs_of"]

_FAMILIES = (text, grid, image, sound, series, labels)

HINT = (
    "write a model.py with `def build_model(): return AutoModel.from_pretrained(...)` and `def get_inputs(batch=1): "
    'return {"pixel_values": torch.randn(batch, 3, 224, 224)}`, with what forward takes'
)


def inputs_of(module: Any, limit: int | None, text_alone: bool = False) -> Inputs:
    """Arguments of forward at any size; raises TorchperfError where one that it needs cannot be made.

    `text_alone` leaves out images and sound where the model takes tokens without them.
    """
    model = Model.of(module, limit)
    made = Inputs()
    generates = bool(getattr(module, "can_generate", lambda: False)())
    leave_out = text_alone and generates and getattr(module, "main_input_name", "") == "input_ids"
    for family in _FAMILIES:
        if not (leave_out and family in (grid, image, sound)):
            family.add(model, made)
    if leave_out and model.accepted & {"pixel_values", "input_features", "input_values"}:
        made.assumptions.append("text alone: without `architectures` in its config the model is a language model")
    signature = inspect.signature(module.forward)
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    needed = [p.name for p in signature.parameters.values() if p.default is p.empty and p.kind not in kinds]
    main = getattr(module, "main_input_name", "input_ids")
    missing = [
        name for name in dict.fromkeys((main, *needed)) if name in signature.parameters and name not in made.makers
    ]
    if missing or not made.makers:
        raise TorchperfError(
            f"cannot make inputs for `{type(module).__name__}`",
            facts=[("no rule for", ", ".join(missing) or main), ("forward", str(signature))],
            hint=HINT,
        )
    return made
