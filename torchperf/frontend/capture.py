"""Module -> Graph with free sizes: one full capture, a few truncated ones, and expressions fitted over them.

1. The whole model is captured at the first point of the regime; its layers fold by signature.
2. With its layer lists cut to the first few (enough to show each kind of layer), it is captured at every point.
3. Numbers that differ between these captures become expressions; the last point is held out and must come out exactly,
   and so must the sizes asked for. A very short and a very long sequence are tried too: where they differ, the range
   in which the expressions are used ends at what was seen.
4. The expressions are carried to the full capture by signature.
Where any step fails the graph is captured at the sizes asked for, as plain integers, and says why.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import torch

from ..graph.cache import CacheEntry
from ..graph.errors import TorchperfError
from ..graph.graph import Block, Facts, Graph, Input, Parameter, Segment
from . import fold, inference, regime, truncate
from .fit import Unfit, fit, misses, show
from .recipes import overrides
from .record import DTYPES
from .run import Recording, record
from .sizes import Fitter
from .subject import Subject
from .tape import Tape


def capture(subject: Subject, mode: str, sizes: Mapping[str, int]) -> Graph:
    """The graph of the regime that holds `sizes`."""
    reason = subject.fixed
    if not reason:
        try:
            return _capture_free(subject, mode, sizes, regime.ranges(sizes, subject.limits, subject.breaks))
        except Unfit as unfit:
            reason = str(unfit)
        at_limit = {name: size for name, size in sizes.items() if subject.limits.get(name) == size}
        if at_limit and len(at_limit) < len(sizes):  # a slice of a whole buffer is none: the rest may still be free
            ends = regime.pinned(regime.ranges(sizes, subject.limits, subject.breaks), at_limit)
            try:
                return _capture_free(subject, mode, sizes, ends)
            except Unfit as unfit:
                reason = str(unfit)
    recording = record(subject, sizes, mode)
    layers = fold.units(subject.module)
    cut = fold.runs(recording.tape, layers)
    blocks, segments = _fold(recording.tape, cut, layers, {})
    where = tuple((name, size, size, 0) for name, size in sizes.items())
    shapes = {name: tuple(t.shape) for name, t in recording.inputs.items()}
    cached = _cached(recording, sizes, layers)
    return Graph(_facts(subject, mode, recording, where, shapes, reason, cached), blocks, segments)


def _capture_free(subject: Subject, mode: str, asked: Mapping[str, int], where: tuple[regime.Range, ...]) -> Graph:
    points = regime.points(where, straddle=subject.constants)
    probes = regime.probes(where, asked, points)
    layers = fold.units(subject.module)
    try:
        full = record(subject, points[0], mode)
    except TorchperfError as error:
        raise Unfit(f"at {show(points[0])} {error.message}") from error
    cut = fold.runs(full.tape, layers)
    wanted = {fold.signature(full.tape, run) for run in cut}
    for keep in truncate.lengths(full.tape, cut, layers):
        with truncate.truncated(subject.module, layers, keep):
            try:
                first = record(subject, points[0], mode).tape if keep else full.tape
            except Exception:  # the model counts its layers itself: capture all of them
                continue
            seen = {fold.signature(first, run): run for run in fold.runs(first, layers)}
            if wanted <= seen.keys():
                others = [_other(subject, mode, first, point) for point in points[1:]]
                fitted = fit(first, [o.tape for o in others], points, (*subject.breaks, *subject.constants))
                missed = {name: _probe(subject, mode, first, fitted, point) for name, point in probes.items()}
                break
    if missed.get("asked"):
        raise Unfit(missed["asked"])
    where = regime.narrowed(where, asked, points, {name for name, why in missed.items() if why})
    carried = {sig: (first, run, fitted) for sig, run in seen.items()}
    blocks, segments = _fold(full.tape, cut, layers, carried)
    shapes = _input_shapes(full, others, points)
    bounds = tuple((r.name, r.low, r.high, r.step) for r in where)
    cached = _cached(full, points[0], layers)
    return Graph(_facts(subject, mode, full, bounds, shapes, "", cached), blocks, segments)


def _other(subject: Subject, mode: str, first: Tape, point: Mapping[str, int]) -> Recording:
    """The recording at another point of the regime; Unfit as soon as the model refuses it or runs other operators."""
    try:
        found = record(subject, point, mode)
    except TorchperfError as error:
        raise Unfit(f"at {show(point)} {error.message}") from error
    if found.tape.keys != first.keys:
        raise Unfit(f"the model runs other operators at {show(point)}")
    return found


def _probe(subject: Subject, mode: str, first: Tape, fitted: list[fold.Fitted], point: Mapping[str, int]) -> str:
    try:
        return misses(first, fitted, record(subject, point, mode).tape, point)
    except TorchperfError as error:
        return error.message


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


def _input_shapes(full: Recording, others: list[Recording], points: list[dict[str, int]]) -> dict[str, Any]:
    fitter = Fitter(points)
    shapes = {}
    for name, tensor in full.inputs.items():
        columns = zip(tensor.shape, *(o.inputs[name].shape for o in others), strict=True)
        shapes[name] = tuple(fitter.fit(tuple(map(int, column))) for column in columns)
        if None in shapes[name]:
            raise Unfit(f"the shape of input `{name}` follows no expression of the sizes")
    return shapes


def _facts(
    subject: Subject, mode: str, recording: Recording, where: tuple[tuple[str, int, int, int], ...],
    shapes: dict[str, Any], fixed: str, cached: tuple[CacheEntry, ...] = (),
) -> Facts:  # fmt: skip
    tape, module = recording.tape, subject.module
    by_name = {name: i for i, name in enumerate(tape.names) if name and tape.kinds[i] in ("param", "buffer")}
    assumptions = [*subject.assumptions, *overrides.notes(module)]
    assumptions += _idle(module, tape, mode)
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
                mode != "train" or not tensors[key].requires_grad or not tape.reached.isdisjoint(paths),
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
        tp_plan=tuple(subject.tp_plan.items()),
        cache=cached,
    )


def _idle(module: torch.nn.Module, tape: Tape, mode: str) -> list[str]:
    """What is told where a pass leaves out a part of the model: towers and adapters that got no input."""
    if mode not in ("train", "forward"):
        return []
    used = {tape.names[storage] for storage in set(tape.storages)}
    first: dict[int, str] = {}
    met: set[int] = set()
    sizes: dict[int, int] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        first.setdefault(id(parameter), name)
        sizes[id(parameter)] = parameter.numel()
        met |= {id(parameter)} if name in used else set()
    left = [key for key in first if key not in met]
    share = sum(sizes[key] for key in left) / max(sum(sizes.values()), 1)
    return [f"{share:.1%} of the parameters take no part, as `{first[left[0]]}`"] if share >= 0.01 else []


def _cached(recording: Recording, sizes: Mapping[str, int], layers: dict[str, str]) -> tuple[CacheEntry, ...]:
    return inference.entries(recording.cached, sizes.get("batch", 1), layers)


def _versions() -> tuple[tuple[str, str], ...]:
    from importlib import metadata

    found = [("torch", str(torch.__version__))]
    with contextlib.suppress(metadata.PackageNotFoundError):
        found.append(("transformers", metadata.version("transformers")))
    return tuple(found)
