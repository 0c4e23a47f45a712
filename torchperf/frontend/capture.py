"""Module -> Graph with free sizes: one full capture, a few truncated ones, and expressions fitted over them.

1. The whole model is captured at the first point of the regime; its layers fold by signature.
2. With its layer lists cut to the first few (enough to show each kind of layer), it is captured at every point.
3. Numbers that differ between these captures become expressions; the last point is held out and must come out exactly.
4. The expressions are carried to the full capture by signature.
Where any step fails the graph is captured at the sizes asked for, as plain integers, and says why.
"""

from __future__ import annotations

import contextlib
import gc
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ..graph.errors import TorchperfError
from ..graph.graph import Block, Facts, Graph, Input, Parameter, Segment
from . import fold, regime
from .meta_device import everything_on_meta
from .patches import capture_patches
from .record import DTYPES, Recorder
from .sizes import Fitter
from .subject import Subject, find_loss, tensors_in
from .tape import Tape


class Unfit(Exception):
    """Captures of one regime do not line up; the reason is shown to the user."""


@dataclass(frozen=True, slots=True)
class _Recording:
    tape: Tape
    inputs: dict[str, torch.Tensor]
    loss_found: bool


def record(subject: Subject, sizes: Mapping[str, int], mode: str) -> _Recording:
    """One run of the subject at concrete sizes."""
    module = subject.module
    module.train(mode == "train")
    args, kwargs = subject.arguments(sizes)
    inputs = tensors_in((*args, kwargs) if args else kwargs)
    was_enabled = gc.isenabled()
    gc.disable()
    found = True
    try:
        placed = everything_on_meta() if subject.own_code else contextlib.nullcontext()
        grad = torch.set_grad_enabled(mode == "train")
        with capture_patches(), placed, Recorder(module, inputs) as recorder, grad:
            outputs = module(*args, **kwargs)
            held = list(tensors_in(_plain(outputs)).values())
            if mode == "train":
                loss, found = (subject.loss(outputs), True) if subject.loss else find_loss(outputs)
                recorder.hold([*held, loss])
                torch.autograd.backward(loss)
            else:
                recorder.hold(held)
        return _Recording(recorder.finish(), inputs, found)
    finally:
        for parameter in module.parameters():
            parameter.grad = None
        if was_enabled:
            gc.enable()


def _plain(outputs: Any) -> Any:
    return outputs if isinstance(outputs, (Mapping, list, tuple, torch.Tensor)) else vars(outputs)


def capture(subject: Subject, mode: str, sizes: Mapping[str, int]) -> Graph:
    """The graph of the regime that holds `sizes`."""
    reason = subject.fixed
    if not reason:
        try:
            return _capture_free(subject, mode, regime.ranges(sizes, subject.limits, subject.breaks))
        except Unfit as unfit:
            reason = str(unfit)
    recording = record(subject, sizes, mode)
    layers = fold.units(subject.module)
    cut = fold.runs(recording.tape, layers)
    blocks, segments = _fold(recording.tape, cut, layers, {})
    where = tuple((name, size, size, 0) for name, size in sizes.items())
    shapes = {name: tuple(t.shape) for name, t in recording.inputs.items()}
    return Graph(_facts(subject, mode, recording, where, shapes, reason), blocks, segments)


def _capture_free(subject: Subject, mode: str, where: tuple[regime.Range, ...]) -> Graph:
    points = regime.points(where)
    layers = fold.units(subject.module)
    full = record(subject, points[0], mode)
    cut = fold.runs(full.tape, layers)
    wanted = {fold.signature(full.tape, run) for run in cut}
    for keep in _lengths(full.tape, cut, layers):
        with _truncated(subject.module, layers, keep):
            try:
                first = record(subject, points[0], mode).tape if keep else full.tape
            except Exception:  # the model counts its layers itself: capture all of them
                continue
            seen = {fold.signature(first, run): run for run in fold.runs(first, layers)}
            if wanted <= seen.keys():
                others = [record(subject, point, mode) for point in points[1:]]
                break
    fitted = _fit(first, [o.tape for o in others], points, subject.breaks)
    carried = {sig: (first, run, fitted) for sig, run in seen.items()}
    blocks, segments = _fold(full.tape, cut, layers, carried)
    shapes = _input_shapes(full, others, points)
    bounds = tuple((r.name, r.low, r.high, r.step) for r in where)
    return Graph(_facts(subject, mode, full, bounds, shapes, ""), blocks, segments)


def _lengths(tape: Tape, cut: list[fold.Run], layers: dict[str, str]) -> Iterator[int]:
    """Numbers of layers to try, fewest first; 0 stands for all of them."""
    position: dict[str, int] = {}
    count: dict[str, int] = {}
    for unit, parent in layers.items():
        position[unit] = count.get(parent, 0)
        count[parent] = position[unit] + 1
    longest = max(count.values(), default=0)
    if longest > 2:
        first_seen: dict[Any, int] = {}
        for run in cut:
            if run.unit and position[run.unit] < count[layers[run.unit]] - 1:
                sig = fold.signature(tape, run)
                first_seen[sig] = min(first_seen.get(sig, longest), position[run.unit])
        least = max(first_seen.values(), default=0) + 2
        for keep in (least, least + 1, 2 * least + 1):
            if keep < longest:
                yield keep
    yield 0


@contextlib.contextmanager
def _truncated(module: nn.Module, layers: dict[str, str], keep: int) -> Iterator[None]:
    """The module with every layer list cut to its first `keep` layers (0: untouched)."""
    lists = {path: module.get_submodule(path) for path in set(layers.values())} if keep else {}
    whole = {path: child._modules for path, child in lists.items()}
    try:
        for path, child in lists.items():
            child._modules = OrderedDict(list(whole[path].items())[:keep])
        yield
    finally:
        for path, child in lists.items():
            child._modules = whole[path]


def _fit(
    first: Tape, others: list[Tape], points: list[dict[str, int]], constants: tuple[int, ...]
) -> list[fold.Fitted]:
    """One fitted number a slot of `first`. The last capture is held out and must be met exactly."""
    for other, point in zip(others, points[1:], strict=True):
        if other.keys != first.keys or other.modules != first.modules:
            raise Unfit(f"the model runs other operators at {_show(point)} than at {_show(points[0])}")
        if _canonical(other.storages) != _canonical(first.storages):
            raise Unfit(f"the model shares other storages at {_show(point)} than at {_show(points[0])}")
    tapes = [first, *others]
    fit_points = points if len(points) < 4 else points[:-1]
    fitter = Fitter(fit_points, (*constants, 16, 32))
    held_out = points[-1] if len(points) >= 4 else None
    columns = list(zip(*(tape.slots for tape in tapes), strict=True))
    known: dict[tuple[bool, tuple[Any, ...]], fold.Fitted] = {}
    fitted: list[fold.Fitted] = []
    for values in columns:
        key = (isinstance(values[0], float), values)
        found = known.get(key)
        if found is None:
            expression = fitter.fit(values[: len(fit_points)])
            if expression is None:
                raise Unfit(f"no expression of {', '.join(points[0])} gives {values}")
            if held_out is not None and not _meets(expression, held_out, values[-1]):
                raise Unfit(f"`{expression}` gives another number than the model at {_show(held_out)}")
            found = known[key] = expression
        fitted.append(found)
    return fitted


def _meets(expression: fold.Fitted, point: Mapping[str, int], value: int | float) -> bool:
    try:
        got = expression if isinstance(expression, (int, float)) else expression(point)
    except TorchperfError:
        return False
    return got == value or (got != got and value != value) or abs(got - value) <= 1e-9 * abs(value)


def _show(point: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {size}" for name, size in point.items())


def _canonical(ids: list[int]) -> list[int]:
    seen: dict[int, int] = {}
    return [seen.setdefault(i, len(seen)) for i in ids]


def _fold(
    tape: Tape, cut: list[fold.Run], layers: dict[str, str], carried: dict[Any, Any]
) -> tuple[tuple[Block, ...], tuple[Segment, ...]]:
    """Blocks of the tape; numbers come from the carried runs where there are any, else from the tape itself."""
    index: dict[Any, int] = {}
    blocks: list[Block] = []
    segments: list[Segment] = []
    for run in cut:
        sig = fold.signature(tape, run)
        if sig not in index:
            index[sig] = len(blocks)
            numbers = tape.slots.__getitem__
            if sig in carried:
                source, model_run, fitted = carried[sig]
                shift = source.slot_start[model_run.start] - tape.slot_start[run.start]
                numbers = lambda slot, shift=shift, fitted=fitted: fitted[slot + shift]  # noqa: E731
            block, storages = fold.build_block(tape, run, numbers, layers)
            blocks.append(block)
        else:
            first, last = tape.tensor_start[run.start], tape.tensor_start[run.stop]
            storages = tuple(dict.fromkeys(tape.storages[first:last]))
        segments.append(Segment(index[sig], run.unit, storages))
    return tuple(blocks), tuple(segments)


def _input_shapes(full: _Recording, others: list[_Recording], points: list[dict[str, int]]) -> dict[str, Any]:
    fitter = Fitter(points)
    shapes = {}
    for name, tensor in full.inputs.items():
        columns = zip(tensor.shape, *(o.inputs[name].shape for o in others), strict=True)
        shapes[name] = tuple(fitter.fit(tuple(map(int, column))) for column in columns)
        if None in shapes[name]:
            raise Unfit(f"the shape of input `{name}` follows no expression of the sizes")
    return shapes


def _facts(
    subject: Subject, mode: str, recording: _Recording, where: tuple[tuple[str, int, int, int], ...],
    shapes: dict[str, Any], fixed: str,
) -> Facts:  # fmt: skip
    tape, module = recording.tape, subject.module
    by_name = {name: i for i, name in enumerate(tape.names) if name and tape.kinds[i] in ("param", "buffer")}
    assumptions = list(subject.assumptions)
    if not recording.loss_found:
        assumptions.append("forward returns no loss: the sum of its outputs stands in for one")
    if fixed:
        assumptions.append(f"captured at these sizes only: {fixed}")

    def described(named: Any) -> tuple[Parameter, ...]:
        names: dict[int, list[str]] = {}
        tensors: dict[int, torch.Tensor] = {}
        for name, tensor in named:
            names.setdefault(id(tensor), []).append(name)
            tensors[id(tensor)] = tensor
        return tuple(
            Parameter(
                tuple(paths), tuple(tensors[key].shape), DTYPES[tensors[key].dtype], tensors[key].requires_grad,
                next((by_name[p] for p in paths if p in by_name), -1),
            )
            for key, paths in names.items()
        )  # fmt: skip

    return Facts(
        model=subject.name,
        model_class=type(module).__name__,
        mode=mode,
        parameters=described(module.named_parameters(remove_duplicate=False)),
        buffers=described(module.named_buffers(remove_duplicate=False)),
        inputs=tuple(Input(n, shapes[n], DTYPES[t.dtype]) for n, t in recording.inputs.items()),
        sizes=tuple(subject.sizes.items()),
        ranges=where,
        limits=tuple(subject.limits.items()),
        fixed=fixed,
        outputs=tuple(tape.outputs),
        guesses=tuple(f"{text} ({n} times)" for text, n in tape.guesses.items()),
        assumptions=tuple(assumptions),
        unattributed=tape.unattributed,
        config=tuple(subject.config.items()),
        versions=_versions(),
    )


def _versions() -> tuple[tuple[str, str], ...]:
    from importlib import metadata

    found = [("torch", str(torch.__version__))]
    with contextlib.suppress(metadata.PackageNotFoundError):
        found.append(("transformers", metadata.version("transformers")))
    return tuple(found)
