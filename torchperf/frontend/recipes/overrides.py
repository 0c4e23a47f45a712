"""Functions of transformers' models that are replaced for the length of a capture, and what is told of each.

A module file that was never imported is left alone: nothing here imports a model.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

_MODELS = "transformers.models"
_INDEXED = "sparse attention: its indexer runs, and attention is counted over all keys, not only those that it picks"


@dataclass(frozen=True, slots=True)
class Override:
    """`owner.name` of a model's file is replaced by `by`; `owner` "" stands for the file itself.

    used   class of the module that runs it
    note   what is told where a model holds such a module, "" where nothing is assumed
    around whether `by` takes what it replaces as its first argument, to call it
    """

    family: str
    owner: str
    name: str
    by: Callable[..., Any]
    used: str
    note: str = ""
    around: bool = False

    @property
    def file(self) -> str:
        """The name of the model's file among the modules."""
        return f"{_MODELS}.{self.family}.modeling_{self.family}"


def _every() -> tuple[Override, ...]:
    from . import experts, modules, scans

    return (*experts.OVERRIDES, *scans.OVERRIDES, *modules.OVERRIDES)


def install(stack: contextlib.ExitStack) -> None:
    """Replace them in the files that are imported. Undone with the stack."""
    for override in _every():
        file = sys.modules.get(override.file)
        if file is None:
            continue
        owner = getattr(file, override.owner) if override.owner else file
        own = override.name in vars(owner)
        original = vars(owner)[override.name] if own else None  # a staticmethod stays one
        by = _around(override.by, getattr(owner, override.name)) if override.around else override.by
        setattr(owner, override.name, by)
        stack.callback(*((setattr, owner, override.name, original) if own else (delattr, owner, override.name)))


def _around(by: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **kwargs: by(original, *args, **kwargs)


def notes(module: nn.Module) -> list[str]:
    """What is to be told of a model: a line for each override that one of its modules runs."""
    classes = {(type(m).__module__, type(m).__name__) for m in module.modules()}
    found = [o.note for o in _every() if (o.file, o.used) in classes and o.note]
    if any(file.startswith(_MODELS) and name.endswith("Indexer") for file, name in classes):
        found.append(_INDEXED)
    return list(dict.fromkeys(found))
