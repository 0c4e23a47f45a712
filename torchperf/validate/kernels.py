"""A CSV of measured kernels or collectives -> our time beside each. The columns tell what a file holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from ..graph.errors import TorchperfError
from ..graph.system import Accelerator
from ..graph.validation import Checked, Skipped, Validation
from ..hardware import load_accelerator
from ..price import matmul
from ..price.roofline import roofline
from . import attention_rows, collective_rows, other_rows, rows
from .cells import told
from .spread import validation

Row = Mapping[str, str]
Outcome = Checked | Skipped
KINDS = {
    "gemm": {"gpu", "dtype", "m", "n", "k", "measured_us"},
    "attention": {"gpu", "dtype", "phase", "heads", "kv_heads", "head_dim", "q_len", "kv_len", "measured_us"},
    "collective": {"gpu", "topology", "op", "num_gpus", "bytes", "measured_us"},
    "other": {"gpu", "op", "shape", "dtype", "measured_us"},
}


def kind_of(columns: list[str], path: Path) -> str:
    """gemm | attention | collective | other, by the columns; raises TorchperfError where none fits."""
    for kind, needed in KINDS.items():
        if needed <= set(columns):
            return kind
    raise TorchperfError(
        f"`{path}` has the columns of no kind of measurement",
        facts=[("columns", ", ".join(columns[:12]) or "none"), *((k, ", ".join(sorted(v))) for k, v in KINDS.items())],
        hint="give a CSV with the columns of one kind",
    )


def validate_kernels(path: Path, kinds: tuple[str, ...]) -> Validation:
    """Every row of the file priced; `kinds` are those that the command takes."""
    table, columns = rows.table(path)
    kind = kind_of(columns, path)
    if kind not in kinds:
        other = "collectives" if kind == "collective" else "ops"
        raise TorchperfError(f"`{path}` holds {kind} rows", hint=f"use `torchperf validate {other} --data {path}`")
    price = {"gemm": _gemm, "attention": _attention, "other": _other, "collective": _collective}[kind]
    devices: dict[str, Accelerator | str] = {}
    outcomes = [_outcome(row, price, devices) for row in table]
    return validation(
        str(path),
        [one for one in outcomes if isinstance(one, Checked)],
        [one for one in outcomes if isinstance(one, Skipped)],
    )


def _outcome(
    row: Row, price: Callable[[Row, dict[str, Accelerator | str]], Outcome], devices: dict[str, Accelerator | str]
) -> Outcome:
    try:
        found = price(row, devices)
        return told(found) if isinstance(found, Checked) else found
    except TorchperfError as error:
        return Skipped(row["id"], error.message)
    except (ValueError, KeyError, ArithmeticError) as error:
        return Skipped(row["id"], f"a cell cannot be read: {error}")


def _device(name: str, known: dict[str, Accelerator | str]) -> Accelerator:
    if name not in known:
        try:
            known[name] = load_accelerator(name)
        except TorchperfError as error:
            known[name] = error.message
    found = known[name]
    if isinstance(found, str):
        raise TorchperfError(found)
    return found


def _gemm(row: Row, devices: dict[str, Accelerator | str]) -> Outcome:
    case = rows.case(row, row["id"])
    if isinstance(case, str):
        return Skipped(row["id"], case)
    device = _device(case.gpu, devices)
    _, seconds = rows.predict(case, device)
    form = matmul.FORMATS[case.dtypes]
    plain = roofline(rows.work_of(case), device) if form.engine == "matrix" or case.dtypes == "fp32" else None
    return Checked(row["id"], f"{case.gpu} {row['dtype']}", "kernel_time", "s", case.seconds, seconds, plain)


def _attention(row: Row, devices: dict[str, Accelerator | str]) -> Outcome:
    case = attention_rows.case(row)
    if isinstance(case, str):
        return Skipped(row["id"], case)
    device = _device(case.gpu, devices)
    seconds = attention_rows.predict(case, device).seconds
    group, plain = f"{case.gpu} {row['dtype']}", roofline(case.work, device)
    return Checked(row["id"], group, "kernel_time", "s", case.seconds, seconds, plain, row["phase"])


def _other(row: Row, devices: dict[str, Accelerator | str]) -> Outcome:
    case = other_rows.case(row)
    if isinstance(case, str):
        return Skipped(row["id"], case)
    device = _device(case.gpu, devices)
    group = f"{case.gpu} {row['dtype']}"
    if isinstance(case, other_rows.Experts):
        works = other_rows.experts_works(case)
        seconds = other_rows.predict_experts(case, device)
        plain = sum(roofline(work, device) for work in works)
        return Checked(row["id"], group, "kernel_time", "s", case.seconds, seconds, plain, "moe_ffn")
    _, seconds = other_rows.predict(case, device)
    return Checked(row["id"], group, "kernel_time", "s", case.seconds, seconds, roofline(case.work, device))


def _collective(row: Row, devices: dict[str, Accelerator | str]) -> Outcome:
    case = collective_rows.case(row)
    if isinstance(case, str):
        return Skipped(row["id"], case)
    names = {case.link, *({case.outside} if case.outside else ())}
    links = collective_rows.links_of(names)
    seconds = collective_rows.predict(case, links).seconds
    plain = case.nbytes / links[case.outside or case.link].bandwidth.value
    group = f"{row['gpu']} {row.get('dtype', '')}".strip()
    return Checked(row["id"], group, "kernel_time", "s", case.seconds, seconds, plain, row["op"])
