"""What the makers of inputs share: the model that they look at, and what they have made."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from ..subject import Arguments

Maker = Callable[[Mapping[str, int]], Any]
DEFAULT_SEQ = 4096
DEFAULT_ANSWER = 448  # tokens that tell what was said


@dataclass(frozen=True, slots=True)
class Model:
    """A transformers model as its config and its forward describe it.

    text, vision, audio    the part of the config for that tower: the whole where there is no such part
    accepted               names of forward's arguments
    limit                  positions that the text model has, or None
    dtype                  of floating-point inputs
    """

    module: Any
    config: Any
    text: Any
    vision: Any
    audio: Any
    accepted: frozenset[str]
    limit: int | None
    dtype: torch.dtype

    @classmethod
    def of(cls, module: Any, limit: int | None) -> Model:
        config = module.config
        text = config.get_text_config(decoder=True) if hasattr(config, "get_text_config") else config
        return cls(
            module, config, text, _part(config, "vision_config", "vit_config"), _part(config, "audio_config"),
            frozenset(inspect.signature(module.forward).parameters), limit,
            next(p.dtype for p in module.parameters() if p.is_floating_point()),
        )  # fmt: skip

    @property
    def kind(self) -> str:
        """The name of the class, such as `BertForMaskedLM`."""
        return type(self.module).__name__


def _part(config: Any, *names: str) -> Any:
    return next((part for name in names if (part := getattr(config, name, None)) is not None), config)


@dataclass(slots=True)
class Inputs:
    """Makers of forward's arguments by name, and what goes with them into a Subject.

    training    names of those that are given in training alone
    """

    makers: dict[str, Maker] = field(default_factory=dict)
    training: set[str] = field(default_factory=set)
    sizes: dict[str, int] = field(default_factory=lambda: {"batch": 1})
    limits: dict[str, int] = field(default_factory=dict)
    assumptions: list[str] = field(default_factory=list)

    def arguments(self, module: Any) -> Callable[[Mapping[str, int]], Arguments]:
        """sizes -> (args, kwargs) of the module's forward, in the mode that it is in then."""

        def at(sizes: Mapping[str, int]) -> Arguments:
            given = {n: make(sizes) for n, make in self.makers.items() if module.training or n not in self.training}
            return (), {name: value for name, value in given.items() if value is not None}

        return at

    def length(self, limit: int | None, default: int = DEFAULT_SEQ) -> None:
        """Let the sequence length be a size, at most `limit`."""
        self.sizes["seq"] = min(default, limit) if limit else default
        if limit:
            self.limits["seq"] = limit


def ids(*shape: int) -> torch.Tensor:
    """Token ids, or classes."""
    return torch.empty(shape, dtype=torch.long, device="meta")
