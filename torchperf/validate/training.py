"""Measured training runs beside ours: step time and memory of every row of a file, or why a row is not built."""

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
from .spread import spread
from .training_map import load_map
from .training_predict import Predict, Predictor, planner_key
from .training_rows import COLUMNS, TrainingCase, case_of, key_of, row_of

SPECS = ("A", "B", "C")


@dataclass(frozen=True, slots=True)
class TrainingValidation:
    """`validation` has the rows; `cases` what each row of the file came to, by its id."""

    validation: Validation
    cases: Mapping[str, TrainingCase]


def validate_training(
    path: Path, *, spec: str | None = None, key: str | None = None, predict: Predict | None = None,
    tell: Callable[[int, int], None] = lambda done, of: None,
) -> TrainingValidation:  # fmt: skip
    """Every run of the file priced, of one `spec` and of one source where asked for.

    `tell` hears how many runs are priced, and of how many. Raises TorchperfError where the file holds no training runs,
    none of that source or spec, or two rows of one id.
    """
    table = _table(path, key)
    known, price = load_map(), predict or Predictor()
    cases: list[TrainingCase] = []
    skipped: list[Skipped] = []
    for cells in table:
        if spec and f"spec={spec}" not in cells.get("notes", ""):
            continue
        found = case_of(cells, known)
        if isinstance(found, Skipped):
            skipped.append(found)
        else:
            cases.append(found)
    if spec and not cases and not skipped:
        raise rows.no_spec(path, spec, (row_of(cells, known).spec for cells in table))
    checked: dict[str, list[Checked]] = {}
    for done, case in enumerate(sorted(cases, key=lambda case: tuple(map(str, planner_key(case))))):
        tell(done, len(cases))
        try:
            checked[case.id] = [told(row) for row in _checked(case, price)]
        except TorchperfError as error:
            skipped.append(Skipped(case.id, error.message))
    order = [case.id for case in cases]
    found_rows = [row for id in order for row in checked.get(id, ())]
    place = {cells["id"]: i for i, cells in enumerate(table)}
    skipped.sort(key=lambda s: place[s.id])
    by_id = {case.id: case for case in cases}
    answer = Validation(str(path), tuple(found_rows), tuple(skipped), tuple(summary(found_rows, by_id)))
    return TrainingValidation(answer, by_id)


def _table(path: Path, key: str | None) -> list[dict[str, str]]:
    table, columns = rows.table(path)
    missing = COLUMNS - set(columns)
    if missing:
        raise TorchperfError(
            f"`{path}` holds no training runs",
            facts=[("missing columns", ", ".join(sorted(missing)))],
            hint="give a CSV with the columns of training runs; `validate ops` takes kernels",
        )
    rows.check_runs(path, table)
    if key is None:
        return table
    chosen = [cells for cells in table if key_of(cells["id"]) == key]
    if not chosen:
        keys = ", ".join(sorted({key_of(cells["id"]) for cells in table}))
        raise TorchperfError(f"no row of `{key}` in `{path}`", facts=[("sources", keys)], hint="give one of them")
    return chosen


def _checked(case: TrainingCase, predict: Predict) -> Iterator[Checked]:
    """The measured figures of a case with ours."""
    found = predict(case)
    if case.step_time_s is not None:
        yield Checked(
            case.id, case.key, "step_time", "s", case.step_time_s, found.step_time_s, found.roofline_s, "step time"
        )
    if case.memory_bytes is not None:
        ours = found.memory(case.memory_kind)
        yield Checked(case.id, case.key, "memory", "B", case.memory_bytes, ours, part="memory")


def error_classes(found: TrainingValidation) -> tuple[ErrorClass, ...]:
    """Errors of the rows by metric, GPU and runtime."""

    def of(row: Checked) -> tuple[str, str, str]:
        case = found.cases[row.id]
        return row.metric, case.gpu, case.runtime

    return classes(found.validation.rows, of)


def summary(checked: list[Checked], cases: Mapping[str, TrainingCase]) -> list[Spread]:
    """Errors of each metric by source, by GPU, by model, by spec, and over all."""
    table: list[Spread] = []
    for part in ("step time", "memory"):
        of_part = [row for row in checked if row.part == part]
        for name, label in (("source", _source), ("spec", _spec), ("gpu", _gpu), ("model", _model)):
            groups: dict[str, list[Checked]] = {}
            for row in of_part:
                groups.setdefault(label(cases[row.id]), []).append(row)
            table += [spread(f"{part}, {name} {group}", groups[group]) for group in sorted(groups)]
        if of_part:
            table.append(spread(f"{part}, all", of_part))
    return table


def _source(case: TrainingCase) -> str:
    return case.key


def _spec(case: TrainingCase) -> str:
    return case.spec or "not given"


def _gpu(case: TrainingCase) -> str:
    return case.gpu


def _model(case: TrainingCase) -> str:
    return case.model.name


def settings_of(case: TrainingCase) -> str:
    """A case in a few words: model, devices, plan, precision, runtime."""
    plan = case.plan
    degrees = " ".join(
        f"{name}{size}"
        for name, size in (("tp", plan.tp), ("pp", plan.pp), ("v", plan.virtual_stages), ("cp", plan.cp),
                           ("ep", plan.ep), ("dp", plan.dp), ("z", plan.zero_stage))
        if size > (0 if name == "z" else 1)
    )  # fmt: skip
    words = [case.model.name, f"{case.num_gpus}x {case.gpu}", degrees, case.precision, case.runtime]
    if plan.recompute != "none":
        words.append(plan.recompute)
    return ", ".join(word for word in words if word)
