"""`torchperf.capture`, `load`, `save`: a model -> Capture, and back from a file; `estimate_inference` of a model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from . import inference
from .frontend import load as frontend_load
from .frontend import store
from .graph.errors import TorchperfError
from .graph.graph import Capture
from .graph.inference import InferenceEstimate, InferencePlan, InferencePrecision, Request

MODES = ("train", "forward", "prefill", "decode", "extend")


def capture(
    model: Any, inputs: Any = None, *, mode: str = "train", micro_batch: int | None = None,
    seq_len: int | None = None, name: str | None = None, refresh: bool = False,
) -> Capture:  # fmt: skip
    """Record `model` once; the result is bound to any batch and sequence length without torch.

    model    a name or path (str) as on the command line, or a live nn.Module (copied to meta, not changed)
    inputs   of a live module: a tensor, tuple or dict of forward's arguments, or a function `(batch, seq) -> these`;
             None for a transformers model or a module that takes token ids
    mode     train | forward, and of inference prefill | decode | extend
    Raises TorchperfError where the model cannot be captured.
    """
    sizes = {key: size for key, size in (("batch", micro_batch), ("seq", seq_len)) if size is not None}
    if mode not in MODES:
        raise TorchperfError(f"unknown mode `{mode}`", hint=f"one of {', '.join(MODES)}")
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


def estimate_inference(
    model: Any, *, input_len: int, output_len: int, gpu: str = "", system: str | None = None,
    num_gpus: int | None = None, batch: int = 1, concurrency: int | None = None, request_rate: float | None = None,
    precision: str = "bf16", activation_precision: str | None = None, kv_precision: str = "bf16", tp: int = 1,
    pp: int = 1, ep: int = 1, attention_dp: int = 1, runtime: str = inference.DEFAULT_RUNTIME,
    gpu_memory_utilization: float | None = None, max_model_len: int | None = None, prefix_hit: float = 0.0,
) -> InferenceEstimate:  # fmt: skip
    """What serving `model` costs on devices of `gpu`, as `torchperf estimate MODEL --mode inference` says it.

    model   a name or path (str) as on the command line, a live transformers model, or captures by mode
    batch   requests of a static batch; `concurrency` or `request_rate` ask for a serving engine instead
    Lengths in tokens, times in the answer in seconds. Raises TorchperfError.
    """
    if isinstance(model, Path):
        model = str(model)
    if not isinstance(model, str | Mapping):
        model = {mode: capture(model, mode=mode) for mode in MODES[2:]}
    return inference.estimate_inference(
        model,
        Request(input_len, output_len, prefix_hit),
        inference.Load(
            batch, concurrency, request_rate, utilization=gpu_memory_utilization, model_len=max_model_len
        ),
        gpu=gpu, system=system, num_gpus=num_gpus, runtime=runtime,
        precision=InferencePrecision(precision, activation_precision, kv_precision),
        plan=InferencePlan(tp, pp, ep, attention_dp),
    )  # fmt: skip
