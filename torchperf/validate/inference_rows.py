"""Rows of measured inference -> the model, devices and runtime that a row describes, and what it measured.

Seconds, tokens a second. A cell of the row stands before the map (inference_map.toml); what neither gives is a reason
to skip.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from ..graph.errors import TorchperfError
from ..graph.validation import Skipped
from .cells import positive, whole
from .inference_degrees import Degrees, degrees_of
from .inference_map import METRICS, Gpu, InferenceMap, Setting

COLUMNS = frozenset(
    {
        "source_note", "model", "gpu", "num_gpus", "tp", "pp", "precision", "batch", "input_len", "output_len",
        "framework", "measured_ttft_ms", "measured_tpot_ms", "measured_total_latency_ms", "measured_throughput_tok_s",
        "notes",
    }
)  # fmt: skip
_CELLS = {
    "ttft": ("measured_ttft_ms", 1e-3), "tpot": ("measured_tpot_ms", 1e-3),
    "latency": ("measured_total_latency_ms", 1e-3), "throughput": ("measured_throughput_tok_s", 1.0),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class InferenceRow:
    """One row of the file, its source, and the settings that hold for it, first to last."""

    id: str
    key: str
    cells: Mapping[str, str]
    settings: tuple[Setting, ...]
    gpu: Gpu | None

    def whole(self, name: str, otherwise: int = 0) -> int:
        """A cell as a whole number."""
        text = self.cells.get(name, "")
        return whole(text, name, least=0) if text else otherwise

    def last(self, name: str) -> str:
        """A text of the last setting that gives it."""
        return next((found for s in reversed(self.settings) if (found := getattr(s, name))), "")

    def number(self, name: str) -> float:
        """A number of the last setting that gives it, 0 where none does."""
        return next((found for s in reversed(self.settings) if (found := getattr(s, name))), 0.0)


@dataclass(frozen=True, slots=True)
class InferenceCase:
    """One measured run.

    model       name of a bundled config
    serving     static | closed | maximal | forward (`validate.inference_map.Setting`)
    batch       sequences of a static batch, or clients; 0 where as many as fit
    rounds      requests of each client, who all begin at once, `alike` or of different lengths; 0: a steady load
    tpot, throughput, first  what the measured figure counts, and what makes the first token
    measured    by metric: seconds, or tokens a second
    spec        A: nothing guessed, B: a secondary knob is, C: a primary one
    assumptions what the source does not state
    """

    id: str
    key: str
    model: str
    serving: str
    batch: int
    rounds: int
    alike: bool
    input_len: int
    output_len: int
    gpu: str
    system: str
    degrees: Degrees
    weights: str
    activations: str
    kv: str
    runtime: str
    attention: str
    watts: float
    tpot: str
    throughput: str
    first: str
    measured: Mapping[str, float]
    spec: str
    assumptions: tuple[str, ...]


def row_of(cells: Mapping[str, str], known: InferenceMap) -> InferenceRow:
    """The row with its source's key, "" where none is known."""
    key = key_of(cells, known)
    settings = tuple(s for s in known.settings if _holds(s, key, cells))
    gpu = next((g for g in known.gpus if (not g.key or key in g.key) and _is(g.match, cells.get("gpu", ""))), None)
    return InferenceRow(cells["id"], key, cells, settings, gpu)


def key_of(cells: Mapping[str, str], known: InferenceMap) -> str:
    """The source of a row, "" for one that no entry of the map knows."""
    title, framework = cells.get("source_note", ""), cells.get("framework", "")
    return next(
        (s.key for s in known.sources if re.search(s.title, title) and re.search(s.framework, framework)), ""
    )  # fmt: skip


def case_of(cells: Mapping[str, str], known: InferenceMap) -> InferenceCase | Skipped:
    """The case of a row of the file, or why there is none."""
    try:
        return _case(row_of(cells, known), known)
    except TorchperfError as error:
        return Skipped(cells["id"], error.message)
    except ValueError as error:
        return Skipped(cells["id"], f"a cell cannot be read: {error}")


def _case(row: InferenceRow, known: InferenceMap) -> InferenceCase:
    if not row.key:
        raise TorchperfError(f"no source is mapped for `{row.cells.get('source_note', '')[:60]}`")
    if skip := row.last("skip"):
        raise TorchperfError(skip)
    if row.gpu is None:
        raise TorchperfError(f"no accelerator of the database for `{row.cells['gpu']}`")
    runtime, serving = row.last("runtime"), row.last("serving")
    if not runtime or not serving:
        raise TorchperfError(f"no runtime is mapped for `{row.key}`")
    model = _model(row, known)
    word = known.precisions.get(row.cells["precision"])
    if word is None:
        raise TorchperfError(f"`precision` `{row.cells['precision']}` is not mapped")
    _check_needed(row, serving)
    degrees = degrees_of(row.cells, row.last("layout"))
    batch = degrees.clients or row.whole("batch", int(row.number("batch")))
    share = row.number("mean_length") or 1.0
    return InferenceCase(
        id=row.id,
        key=row.key,
        model=model,
        serving=serving,
        batch=batch,
        rounds=int(row.number("rounds")),
        alike=share == 1,
        input_len=max(1, round(share * row.whole("input_len"))),
        output_len=round(share * row.whole("output_len")),
        gpu=row.gpu.name,
        system="" if degrees.num_gpus == 1 else row.gpu.system,
        degrees=degrees,
        weights=row.last("weights") or word.weights,
        activations=row.last("activations") or word.activations,
        kv=row.last("kv") or word.kv,
        runtime=runtime,
        attention=row.last("attention") or "auto",
        watts=row.number("watts"),
        tpot=row.last("tpot") or "step",
        throughput=row.last("throughput") or "output",
        first=row.last("first") or "prompt",
        measured=_measured(row),
        spec=row.last("spec"),
        assumptions=(*(text for s in row.settings for text in s.assumes), *word.assumes, *degrees.assumptions),
    )


def _check_needed(row: InferenceRow, serving: str) -> None:
    needed = ["num_gpus", "tp", "pp", "input_len"]
    needed += [] if serving == "maximal" or row.number("batch") else ["batch"]
    needed += [] if serving == "forward" else ["output_len"]
    missing = [name for name in needed if not row.cells.get(name)]
    if missing:
        raise TorchperfError(f"the source states no {', '.join(missing)}")


def _model(row: InferenceRow, known: InferenceMap) -> str:
    name = row.cells["model"]
    found = next((m for m in known.models if (not m.key or row.key in m.key) and _is(m.match, name)), None)
    if found is None:
        raise TorchperfError(f"no bundled config for `{name}`")
    if found.skip:
        raise TorchperfError(found.skip)
    return found.config


def _measured(row: InferenceRow) -> dict[str, float]:
    """The figures of the row by metric; raises TorchperfError where nothing is left."""
    left = {name for s in row.settings for name in s.leave}
    found = {
        metric: positive(row.cells[cell], cell) * unit
        for metric, (cell, unit) in _CELLS.items()
        if metric not in left and row.cells.get(cell)
    }
    if any(value <= 0 for value in found.values()):
        raise TorchperfError("a measured figure is not positive")
    if not found:
        raise TorchperfError("no figure of the row is one that we predict")
    return {metric: found[metric] for metric in METRICS if metric in found}


def _holds(setting: Setting, key: str, cells: Mapping[str, str]) -> bool:
    names = ("model", "gpu", "precision", "framework")
    return (
        key in setting.key
        and (not setting.ids or cells["id"] in setting.ids)
        and all(not (text := getattr(setting, n)) or _is(text, cells.get(n, "")) for n in names)
        and setting.note in cells.get("notes", "")
    )


def _is(pattern: str, text: str) -> bool:
    return re.fullmatch(pattern, text) is not None
