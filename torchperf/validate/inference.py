"""Measured inference runs beside ours: the figures of every row of a file, or why a row is not built."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ..graph.confidence import ErrorClass
from ..graph.errors import TorchperfError
from ..graph.validation import Checked, Skipped, Spread, Validation
from . import rows
from .cells import told
from .classes import classes
from .inference_map import METRICS, load_map
from .inference_predict import Predict, Predictor, planner_key
from .inference_rows import COLUMNS, InferenceCase, case_of, key_of
from .spread import spread

SPECS = ("A", "B", "C")
_UNITS = {"ttft": "s", "tpot": "s", "latency": "s", "throughput": "tokens/s"}


@dataclass(frozen=True, slots=True)
class InferenceValidation:
    """`validation` has the rows; `cases` what each row of the file came to, by its id."""

    validation: Validation
    cases: Mapping[str, InferenceCase]


def validate_inference(
    path: Path, *, spec: str | None = None, key: str | None = None, predict: Predict | None = None,
    tell: Callable[[int, int], None] = lambda done, of: None,
) -> InferenceValidation:  # fmt: skip
    """Every run of the file priced, of one `spec` and of one source where asked for.

    `tell` hears how many runs are priced, and of how many. Raises TorchperfError where the file holds no inference
    runs, none of that source or spec, or two rows of one id.
    """
    known, price = load_map(), predict or Predictor()
    table = _table(path, key)
    cases: list[InferenceCase] = []
    specs: list[str] = []
    skipped: list[Skipped] = []
    for cells in table:
        found = case_of(cells, known)
        if isinstance(found, Skipped):
            skipped.append(found)
            continue
        specs.append(found.spec)
        if spec is None or found.spec == spec:
            cases.append(found)
    if spec and specs and not cases:
        raise rows.no_spec(path, spec, specs)
    checked: dict[str, list[Checked]] = {}
    for done, case in enumerate(sorted(cases, key=lambda case: tuple(map(str, planner_key(case))))):
        tell(done, len(cases))
        try:
            checked[case.id] = [told(row) for row in _checked(case, price)]
        except TorchperfError as error:
            skipped.append(Skipped(case.id, error.message))
    found_rows = [row for case in cases for row in checked.get(case.id, ())]
    place = {cells["id"]: i for i, cells in enumerate(table)}
    skipped.sort(key=lambda s: place[s.id])
    by_id = {case.id: case for case in cases}
    answer = Validation(str(path), tuple(found_rows), tuple(skipped), tuple(summary(found_rows, by_id)))
    return InferenceValidation(answer, by_id)


def _table(path: Path, key: str | None) -> list[dict[str, str]]:
    table, columns = rows.table(path)
    missing = COLUMNS - set(columns)
    if missing:
        raise TorchperfError(
            f"`{path}` holds no inference runs",
            facts=[("missing columns", ", ".join(sorted(missing)))],
            hint="give a CSV with the columns of inference runs; `validate training` takes training runs",
        )
    rows.check_runs(path, table)
    if key is None:
        return table
    known = load_map()
    keys = [key_of(cells, known) for cells in table]
    chosen = [cells for cells, found in zip(table, keys, strict=True) if found == key]
    if not chosen:
        sources = ", ".join(sorted(set(filter(None, keys))))
        raise TorchperfError(f"no row of `{key}` in `{path}`", facts=[("sources", sources)], hint="give one of them")
    return chosen


def _checked(case: InferenceCase, predict: Predict) -> Iterator[Checked]:
    """The measured figures of a case with ours."""
    found = predict(case)
    for metric, measured in case.measured.items():
        ours = found.figure(metric)
        plain = dict(found.bounds).get(metric)
        yield Checked(case.id, case.key, metric, _UNITS[metric], measured, ours, plain, metric)


def error_classes(found: InferenceValidation) -> tuple[ErrorClass, ...]:
    """Errors of the rows by metric, GPU and runtime; a forward pass has one figure, a metric of its own."""
    rows, passes = [], dict[str, Checked]()
    for row in found.validation.rows:
        if found.cases[row.id].serving == "forward":
            passes.setdefault(row.id, row)
        else:
            rows.append(row)

    def of(row: Checked) -> tuple[str, str, str]:
        case = found.cases[row.id]
        return "forward_time" if row.id in passes else row.metric, case.gpu, case.runtime

    return classes((*rows, *passes.values()), of)


def summary(checked: list[Checked], cases: Mapping[str, InferenceCase]) -> list[Spread]:
    """Errors of each metric by source, by spec, by GPU, by model, by runtime, and over all."""
    labels: tuple[tuple[str, Callable[[InferenceCase], str]], ...] = (
        ("source", lambda case: case.key), ("spec", lambda case: case.spec or "not given"),
        ("gpu", lambda case: case.gpu), ("model", lambda case: case.model), ("runtime", lambda case: case.runtime),
    )  # fmt: skip
    table: list[Spread] = []
    for metric in METRICS:
        of_metric = [row for row in checked if row.metric == metric]
        for name, label in labels:
            groups: dict[str, list[Checked]] = {}
            for row in of_metric:
                groups.setdefault(label(cases[row.id]), []).append(row)
            table += [spread(f"{metric}, {name} {group}", groups[group]) for group in sorted(groups)]
        if of_metric:
            table.append(spread(f"{metric}, all", of_metric))
    if checked:
        table.append(spread("all", checked))
    return table


def settings_of(case: InferenceCase) -> str:
    """A case in a few words: model, devices, degrees, batch and lengths, precision, runtime."""
    split = case.degrees
    degrees = " ".join(
        f"{name}{size}"
        for name, size in (("tp", split.tp), ("pp", split.pp), ("ep", split.ep), ("adp", split.attention_dp))
        if size > 1
    )
    lengths = f"{case.input_len}/{case.output_len}" if case.output_len else str(case.input_len)
    batch = f"{case.serving} {case.batch or ''}".strip()
    formats = "/".join(dict.fromkeys((case.weights, case.activations, case.kv)))
    words = [case.model, f"{split.num_gpus}x {case.gpu}", degrees, f"{batch} x {lengths}", formats, case.runtime]
    return ", ".join(word for word in words if word)
