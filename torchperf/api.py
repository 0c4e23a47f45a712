"""`torchperf.capture`, `load` and `save`: a model, live or named -> Capture, and back from a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .frontend import load as frontend_load
from .frontend import store
from .graph.errors import TorchperfError
from .graph.graph import Capture


def capture(
    model: Any, inputs: Any = None, *, mode: str = "train", micro_batch: int | None = None,
    seq_len: int | None = None, name: str | None = None, refresh: bool = False,
) -> Capture:  # fmt: skip
    """Record `model` once; the result is bound to any batch and sequence length without torch.

    model    a name or path (str) as on the command line, or a live nn.Module (copied to meta, not changed)
    inputs   of a live module: a tensor, tuple or dict of forward's arguments, or a function `(batch, seq) -> these`;
             None for a transformers model or a module that takes token ids
    Raises TorchperfError where the model cannot be captured.
    """
    sizes = {key: size for key, size in (("batch", micro_batch), ("seq", seq_len)) if size is not None}
    if mode not in ("train", "forward"):
        raise TorchperfError(f"unknown mode `{mode}`", hint="one of train, forward")
    if isinstance(model, Path):
        model = str(model)
    if isinstance(model, str):
        return frontend_load.load(model, mode, sizes, refresh)[0]
    from .frontend.live import is_module, subject_of_module

    if not is_module(model):
        raise TorchperfError(
            f"a model is a name, a path or an nn.Module, not `{type(model).__name__}`",
            hint="give what the command line takes, or a live module and its inputs",
        )
    subject = subject_of_module(model, inputs, name or type(model).__name__)
    return frontend_load.extend(None, subject, mode, sizes)


def load(path: str | Path) -> Capture:
    """A capture from a file that `save` or `torchperf capture -o` wrote. Runs no code of the model."""
    return store.read(Path(path))


def save(capture: Capture, path: str | Path) -> None:
    """Write a capture to a file, whole or not at all."""
    store.write(Path(path), capture)
