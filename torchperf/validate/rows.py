"""Rows of measured matrix products -> the product that prices the same thing, and what its clock adds.

Clocks: Vidur's is the kernel's own, at the clocks of a long run; aiconfigurator replays a CUDA graph back to back, a
burst; NeuSight's times one eager op from an idle device, see `on_clock`. fp8 rows flagged INCLUDES_DYNAMIC_QUANT, and
all of `fp8_block`, `nvfp4` and `sq`, quantise their activations within the time.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..graph.errors import TorchperfError
from ..graph.price import Price
from ..graph.system import Accelerator
from ..graph.work import Work
from ..price.matmul import FORMATS, fit_of, price
from ..price.tiles import Array
from .cells import positive, whole

COLUMNS = ("source", "gpu", "dtype", "m", "n", "k", "measured_us")
CLASSES = {"bfloat16": "16bit", "float16": "16bit", "float32": "fp32"}
CLOCKS = {"vidur": "sustained", "neusight": "eager"}  # by the source's key; every other is a replayed burst
QUANTISED = ("fp8_block", "nvfp4", "sq")
# element type of a Work for each class
TYPES = {"16bit": "bf16", "fp8": "fp8", "fp8_block": "fp8", "nvfp4": "fp4", "sq": "i8", "fp32": "fp32", "tf32": "tf32"}


@dataclass(frozen=True, slots=True)
class Case:
    """One measured product; `clock` is sustained | burst | eager."""

    id: str
    source: str
    gpu: str
    dtypes: str
    batch: int
    m: int
    n: int
    k: int
    clock: str
    quantised: bool
    resident: bool
    seconds: float


def case(row: Mapping[str, str], id: str = "") -> Case | str:
    """The case of a row of the file, or why it cannot be priced."""
    missing = [name for name in COLUMNS if not row.get(name)]
    if missing:
        return "no " + ", ".join(f"`{name}`" for name in missing)
    dtypes = CLASSES.get(row["dtype"], row["dtype"])
    if dtypes not in FORMATS:
        return f"no dtype `{row['dtype']}`"
    try:
        batch, m, n, k = (whole(row.get(name) or "1", name) for name in ("batch", "m", "n", "k"))
        seconds = positive(row["measured_us"], "measured_us") * 1e-6
    except TorchperfError as error:
        return error.message
    flags = (row.get("flag") or "").split(";")
    source = row["source"].partition("@")[0]
    return Case(
        id or row.get("id", ""), source, row["gpu"], dtypes, batch, m, n, k, CLOCKS.get(source, "burst"),
        dtypes in QUANTISED or "INCLUDES_DYNAMIC_QUANT" in flags, "L2_RESIDENT" in flags, seconds,
    )  # fmt: skip


def table(path: Path) -> tuple[list[dict[str, str]], list[str]]:
    """Rows with an `id` each, and the columns; raises TorchperfError where the file is no CSV."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            found = [
                {
                    **{k: v or "" for k, v in row.items() if k is not None and not isinstance(v, list)},
                    "id": row.get("id") or str(line),
                }
                for line, row in enumerate(reader, start=2)
            ]
            columns = list(reader.fieldnames or ())
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise TorchperfError(
            f"cannot read `{path}`", facts=[("reason", why)], hint="give a CSV with a header"
        ) from None
    return found, columns


def check_runs(path: Path, found: Sequence[Mapping[str, str]]) -> None:
    """Raises TorchperfError where there are no rows, or two of one id, by which runs are told apart."""
    if not found:
        raise TorchperfError(f"`{path}` has a header and no rows", hint="give one row a run")
    twice = next((id for id, times in Counter(cells["id"] for cells in found).items() if times > 1), None)
    if twice is not None:
        lines = [line for line, cells in zip(_lines(path), found, strict=True) if cells["id"] == twice]
        raise TorchperfError(
            f"`{path}` has {len(lines)} rows of one id",
            facts=[("id", twice), ("lines", " and ".join(map(str, lines)))],
            hint="give each row an id of its own",
        )


def _lines(path: Path) -> list[int]:
    """The line on which each row ends."""
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        return [reader.line_num for _ in reader]


def no_spec(path: Path, spec: str, found: Iterable[str]) -> TorchperfError:
    """The error for a spec that no row has; `found` are those that they have."""
    specs = ", ".join(sorted({one or "not given" for one in found}))
    return TorchperfError(f"no row of `--spec {spec}` in `{path}`", facts=[("specs", specs)], hint="give one of them")


def read(path: Path) -> list[dict[str, str]]:
    """The rows of a csv of the shared format; `id` is the row's own, or its line number (the header is line 1)."""
    return table(path)[0]


def cases(rows: Iterable[Mapping[str, str]]) -> tuple[list[Case], list[tuple[str, str]]]:
    """The products among rows, and (id, reason) of those that are none."""
    found: list[Case] = []
    skipped: list[tuple[str, str]] = []
    for row in rows:
        one = case(row)
        if isinstance(one, Case):
            found.append(one)
        else:
            skipped.append((row.get("id", ""), one))
    return found, skipped


def on_clock(kernel: Array, clock_floor: float) -> Array:
    """What NeuSight's clock shows of a kernel's seconds: half of a launch always, all of it while it is the longer."""
    return np.asarray(np.maximum(clock_floor, clock_floor / 2 + kernel))


def work_of(of: Case) -> Work:
    """The same product as a Work; weight-only ones are told by their bytes."""
    form = FORMATS[of.dtypes]
    flops = 2 * of.batch * of.m * of.n * of.k
    read_bytes = int(of.batch * of.k * (form.x * of.m + form.w * of.n))
    written = int(of.batch * of.m * of.n * form.y)
    dims = (("batch", of.batch), ("m", of.m), ("n", of.n), ("k", of.k))
    dtype = TYPES.get(of.dtypes, "bf16")
    return Work("matmul", form.engine, dtype, flops, flops, flops, read_bytes, written, dims, "bmk,bkn->bmn")


def predict(of: Case, accelerator: Accelerator) -> tuple[Price, float]:
    """Our price of a case, and the seconds that its clock would show."""
    burst = of.clock == "burst"
    found = price(work_of(of), accelerator, of.clock == "sustained", of.quantised, dtypes=of.dtypes, resident=burst)
    if of.clock != "eager":
        return found, found.seconds
    floor = dict(fit_of(accelerator, of.dtypes).parameters).get("clock_floor_neusight", 0.0)
    return found, float(on_clock(np.array([found.seconds]), floor)[0])
