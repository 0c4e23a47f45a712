"""MODEL, as the command line gives it -> Capture. torch is imported only where nothing saved answers."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import configs
from ..graph.check import MAX_BYTES
from ..graph.errors import TorchperfError
from ..graph.graph import Capture, Graph
from . import store

if TYPE_CHECKING:
    from .subject import Subject

FLAGS = {"seq": "--seq-len", "batch": "--micro-batch", "kv": "--kv-len"}


@dataclass(frozen=True, slots=True)
class Source:
    """Where a model comes from: kind is graph | file | config | hub; `entry` is the name after `model.py:`."""

    kind: str
    name: str
    path: Path | None = None
    entry: str | None = None
    config: Mapping[str, Any] | None = None

    def key(self, mode: str) -> str:
        """The cache key; a file's own contents are checked against the entry, see store.py."""
        if self.kind == "file":
            return store.key("file", str(self.path and self.path.resolve()), self.entry or "", mode)
        contents = repr(sorted((self.config or {}).items(), key=lambda item: item[0]))
        return store.key(self.kind, self.name, hashlib.sha256(contents.encode()).hexdigest(), mode)


def resolve(model: str) -> Source:
    """What MODEL names; raises TorchperfError where it names nothing."""
    from .pretrained import read_config

    text, _, entry = model.rpartition(":") if ".py:" in model else (model, "", "")
    path = _path(text)
    if path.suffix == ".py":
        if not path.is_file():
            raise TorchperfError(f"no file `{path}`", hint="give the path of a model.py")
        return Source("file", path.stem, path, entry or None)
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise TorchperfError(f"`{path}` holds no config.json", hint="give a folder with a transformers config.json")
        return Source("config", path.resolve().name, config=read_config(path / "config.json"))
    if path.suffix == ".json":
        if not path.is_file():
            raise TorchperfError(f"no file `{path}`", hint="give a config.json or a saved graph")
        with path.open("rb") as file:
            if b'"torchperf-graph"' in file.read(64):
                return Source("graph", path.stem, path)
        return Source("config", path.resolve().parent.name, config=read_config(path))
    if model in configs.names():
        return Source("config", model, config=configs.load(model))
    if path.is_file():
        raise TorchperfError(f"`{path}` is no model", hint="give a model.py, a config.json or a saved graph (.json)")
    if "/" in model and not model.startswith((".", "/")) and model.count("/") == 1:
        return Source("hub", model)
    configs.path(model)  # raises, with the nearest names
    raise AssertionError(model)


def _path(text: str) -> Path:
    """MODEL as a path; raises TorchperfError where it is none that a system takes, or names a file beyond bounds."""
    path = Path(text)
    try:
        size = path.stat().st_size if path.is_file() else 0
    except (OSError, ValueError):  # too long, or a character that no name has
        raise TorchperfError(
            f"no model is named `{text[:80]}`", hint="`torchperf models` lists the bundled ones"
        ) from None
    if size > MAX_BYTES:
        raise TorchperfError(f"`{path}` is too large for a model", facts=[("bytes", f"{size:,}, of {MAX_BYTES:,}")])
    return path


def load(model: str | Source, mode: str, sizes: Mapping[str, int], refresh: bool = False) -> tuple[Capture, Graph]:
    """The capture of MODEL and its graph that holds `sizes` (a size that is None or missing takes its default).

    A saved graph answers alone; else the cache; else the model is captured, and the cache keeps it.
    """
    source = resolve(model) if isinstance(model, str) else model
    if source.kind == "graph":
        assert source.path is not None
        capture = store.read(source.path)
        if capture.facts.mode != mode:
            raise TorchperfError(
                f"`{source.path}` was captured for another mode",
                facts=[("file", capture.facts.mode), ("asked", mode)],
                hint=f"give `--mode {capture.facts.mode}`, or capture it again with `--mode {mode}`",
            )
        return capture, _graph_of(capture, _merged(capture, sizes))
    name = source.key(mode)
    known = None if refresh else store.cached(name)
    if known is not None:
        capture, files = known
        found = capture.find(_merged(capture, sizes))
        if found is not None:
            return capture, found
    from .subject_of import subject_of

    subject, files = subject_of(source)
    capture = extend(known[0] if known else None, subject, mode, sizes)
    store.keep(name, capture, files)
    return capture, _graph_of(capture, _merged(capture, sizes))


def extend(known: Capture | None, subject: Subject, mode: str, sizes: Mapping[str, int]) -> Capture:
    """`known` with the regime of `sizes` added; a first capture adds batch 1 and batch 2 and more together."""
    from .capture import capture
    from .inference import for_mode

    subject = for_mode(subject, mode)
    wanted = _sizes_of(subject, sizes)
    graphs = list(known.graphs) if known else []
    if not any(g.holds(wanted) for g in graphs):
        graphs.append(capture(subject, mode, wanted))
    if known is None and not graphs[0].facts.fixed:
        for other in _companions(wanted, subject):
            if not any(g.holds(other) for g in graphs):
                with contextlib.suppress(TorchperfError):  # not what was asked for
                    graphs.append(capture(subject, mode, other))
    return Capture(tuple(g for i, g in enumerate(graphs) if i == 0 or not g.facts.fixed or known))


def _companions(wanted: Mapping[str, int], subject: Subject) -> list[dict[str, int]]:
    """Sizes of the regimes that are captured along with a first one: below a limit, and batch 1 or batch 2 and more."""
    found = [dict(wanted)]
    for name, limit in subject.limits.items():
        if wanted.get(name) == limit and limit > 3:
            found.append({**wanted, name: limit // 2})
    if "batch" in wanted:
        found += [{**sizes, "batch": 2 if sizes["batch"] == 1 else 1} for sizes in found]
    return found[1:]


def _sizes_of(subject: Subject, sizes: Mapping[str, int]) -> dict[str, int]:
    wanted = {name: sizes.get(name, default) for name, default in subject.sizes.items()}
    _refuse_unknown(set(sizes) - set(wanted), subject.name, set(wanted))
    _refuse_small(wanted)
    for name, size in wanted.items():
        limit = subject.limits.get(name)
        if limit is not None and size > limit:
            raise beyond(name, size, limit, subject.name)
    return wanted


def beyond(name: str, size: int, limit: int, model: str) -> TorchperfError:
    """The error for a size that the model cannot take."""
    flag = FLAGS.get(name, name)
    return TorchperfError(
        f"`{flag} {size}` is more than `{model}` has positions for",
        facts=[("positions", str(limit))],
        hint=f"give {flag} {limit} or less",
    )


def _merged(capture: Capture, sizes: Mapping[str, int]) -> dict[str, int]:
    defaults = dict(capture.facts.sizes)
    _refuse_unknown(set(sizes) - set(defaults), capture.facts.model, set(defaults))
    merged = {**defaults, **sizes}
    _refuse_small(merged)
    for name, limit in capture.facts.limits:
        if merged[name] > limit:
            raise beyond(name, merged[name], limit, capture.facts.model)
    return merged


def _refuse_small(sizes: Mapping[str, int]) -> None:
    for name, size in sizes.items():
        if size < 1:
            raise TorchperfError(f"`{FLAGS.get(name, name)}` is {size}: it must be at least 1")


def _refuse_unknown(extra: set[str], model: str, known: set[str]) -> None:
    if extra:
        raise TorchperfError(
            f"`{model}` has no size {', '.join(f'`{name}`' for name in sorted(extra))}",
            facts=[("its sizes", ", ".join(sorted(known)) or "none: its inputs are fixed")],
            hint=f"leave out {', '.join(FLAGS.get(name, name) for name in sorted(extra))}",
        )


def _graph_of(capture: Capture, sizes: Mapping[str, int]) -> Graph:
    found = capture.find(sizes)
    if found is None:
        capture.bind(**sizes)  # raises OutOfRange
        raise AssertionError(sizes)
    return found
