"""A live nn.Module -> Subject."""

from __future__ import annotations

import sys
from typing import Any

from torch import nn

from . import plain
from .subject import Subject


def is_module(item: object) -> bool:
    """Whether `item` is an nn.Module."""
    return isinstance(item, nn.Module)


def is_transformers(module: nn.Module) -> bool:
    """Whether a module is a transformers model."""
    return "transformers" in sys.modules and isinstance(module, sys.modules["transformers"].PreTrainedModel)


def subject_of_module(module: nn.Module, inputs: Any, name: str, where: str = "") -> Subject:
    """The Subject of a copy of `module` on meta; inputs are guessed where there are none."""
    meta = plain.as_bf16(plain.on_meta(module))
    if is_transformers(meta):
        from . import hf, transformers_patches

        transformers_patches.register()
        hf.choose_attention(meta)
        if inputs is None:
            return hf.from_module(meta, name)
    return plain.subject(meta, inputs, name, where)
