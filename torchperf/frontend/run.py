"""One run of a subject at concrete sizes, recorded."""

from __future__ import annotations

import contextlib
import gc
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from ..graph import progress
from ..graph.errors import TorchperfError
from .meta_device import everything_on_meta
from .patches import capture_patches
from .record import Recorder
from .subject import Subject, find_loss, tensors_in
from .tape import Tape


@dataclass(frozen=True, slots=True)
class Recording:
    tape: Tape
    inputs: dict[str, torch.Tensor]
    loss_found: bool
    cached: Mapping[str, Any] = field(default_factory=dict)


def record(subject: Subject, sizes: Mapping[str, int], mode: str) -> Recording:
    """One run of the subject at concrete sizes."""
    module = subject.module
    module.train(mode == "train")
    was_enabled = gc.isenabled()
    gc.disable()
    found = True
    try:
        args, kwargs = subject.arguments(sizes)
        inputs = tensors_in((*args, kwargs) if args else kwargs)
        placed = everything_on_meta() if subject.own_code else contextlib.nullcontext()
        grad = torch.set_grad_enabled(mode == "train")
        recorder = Recorder(module, inputs)
        with capture_patches(), placed, _caching(recorder, module, mode, sizes) as run, recorder, grad:
            if run:
                run.begin(next((v for k, v in kwargs.items() if k in ("cache", "past_key_values")), None))
            outputs = module(*args, **kwargs)
            held = list(tensors_in(_plain(outputs)).values())
            if mode == "train":
                loss, found = (subject.loss(outputs), True) if subject.loss else find_loss(outputs)
                recorder.hold([*held, loss])
                torch.autograd.backward(loss)
            else:
                recorder.hold(held)
        recording = Recording(recorder.finish(), inputs, found, run.cached if run else {})
        progress.done(f"{subject.name}, {mode}")
        return recording
    except TorchperfError:
        raise
    except Exception as error:
        raise _failed(subject, error) from error
    finally:
        for parameter in module.parameters():
            parameter.grad = None
        if was_enabled:
            gc.enable()


def _caching(recorder: Recorder, module: Any, mode: str, sizes: Mapping[str, int]) -> Any:
    """The patches of a mode that caches; transformers is not imported for any other."""
    if mode in ("train", "forward"):
        return contextlib.nullcontext()
    from .cache_op import caching

    return caching(recorder, module, mode, sizes)


def _plain(outputs: Any) -> Any:
    return outputs if isinstance(outputs, (Mapping, list, tuple, torch.Tensor)) else vars(outputs)


def _failed(subject: Subject, error: Exception) -> TorchperfError:
    """What to tell of an exception out of the model's own code."""
    text = (str(error).strip() or type(error).__name__).splitlines()[0]
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "site-packages" not in f.filename]
    inside = [f for f in frames if not Path(f.filename).is_relative_to(Path(__file__).parent.parent)]
    line = [("line", f"{Path(inside[-1].filename).name}:{inside[-1].lineno}: {inside[-1].line}")] if inside else []
    without_data = isinstance(error, NotImplementedError) and "meta" in str(error).lower()
    if without_data or "data-dependent" in text or "meta tensor" in text.lower():
        return TorchperfError(
            f"`{subject.name}` needs the data of a tensor, which is not there",
            facts=[*line, ("reason", f"{type(error).__name__}: {text}")],
            hint="a shape or branch that depends on values (`nonzero`, boolean indexing, `.tolist()`) cannot be "
            "captured: write it with fixed shapes, such as `torch.where`",
        )
    made = "" if subject.own_code else ", made from the config: to give others, write a model.py with `get_inputs()`"
    return TorchperfError(
        f"`{subject.name}` failed in forward or backward",
        facts=[*line, ("reason", f"{type(error).__name__}: {text}")],
        hint=f"check the shapes of the inputs{made}; `--debug` shows the traceback",
    )
