"""Refit the constants of the prices from measured rows, and write them into hardware_db/fits.

    python scripts/fit_prices.py DATA_DIR                   every family whose csv is there
    python scripts/fit_prices.py DATA_DIR --family matmul   one family
    python scripts/fit_prices.py DATA_DIR --dry-run         errors alone, nothing is written

The constants are fitted on all rows; the errors stored and printed are those of each row under constants that saw no
row of its third. A module of scripts/fit has `fit(rows) -> {name: {key: table}}`, and `report(rows, tables) -> lines`
where there is more to print. Exit code 1 where a bar is missed.
"""

from __future__ import annotations

import argparse
import csv
import importlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "scripts" / "fit")]

from common import toml, write  # noqa: E402

FILES = {
    "matmul": "ops_gemm.csv",
    "attention": "ops_attention.csv",
    "memory": "ops_other.csv",
    "collective": "collectives.csv",
}
# (family, prefix of the key, prefix of the name) -> most that median and p90 may be; the first that fits stands
BARS: tuple[tuple[tuple[str, str, str], tuple[float, float]], ...] = (
    (("matmul", "16bit", "a100"), (0.06, 0.16)),
    (("matmul", "16bit", "h100"), (0.06, 0.16)),
    (("matmul", "16bit", "h200"), (0.065, 0.22)),
    (("matmul", "16bit", "b200"), (0.07, 0.25)),
    (("matmul", "16bit", "gb200"), (0.07, 9.0)),
    (("matmul", "16bit", "l40s"), (0.10, 0.40)),
    (("matmul", "16bit", "a40"), (0.10, 0.40)),
    (("matmul", "fp32", ""), (0.09, 0.35)),
    (("matmul", "16bit", ""), (9.0, 9.0)),
    (("matmul", "", ""), (0.09, 0.32)),
    (("attention", "prefill", ""), (0.12, 0.40)),
    (("attention", "decode", ""), (0.15, 0.60)),
    (("memory", "", ""), (0.15, 0.45)),
    (("collective", "", ""), (0.05, 0.18)),
)


def bar(family: str, name: str, key: str) -> tuple[float, float]:
    """The most that median and p90 may be; 9.0 where there is no bar."""
    for (of, keys, names), most in BARS:
        if of == family and key.startswith(keys) and name.startswith(names):
            return most
    return (9.0, 9.0)


def rows_of(data: Path, family: str) -> list[dict[str, str]]:
    """The rows of a family's csv; `id` is the line number where the file gives none."""
    with (data / FILES[family]).open(newline="", encoding="utf-8") as file:
        return [{**row, "id": row.get("id") or str(line)} for line, row in enumerate(csv.DictReader(file), start=2)]


def print_table(family: str, tables: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> int:
    """Print the errors beside the bars; how many bars are missed."""
    missed = 0
    print(f"{family:42} {'median':>8} {'bar':>6} {'p90':>8} {'bar':>6}   rows")
    for name in sorted(tables):
        for key, table in sorted(tables[name].items()):
            errors, most = (table["median_error"], table["p90_error"]), bar(family, name, key)
            over = table["basis"] == "fitted" and any(error > limit for error, limit in zip(errors, most, strict=True))
            missed += over
            columns = " ".join(
                f"{error:8.1%} {f'{limit:.1%}' if limit < 9 else '-':>6}"
                for error, limit in zip(errors, most, strict=True)
            )
            print(f"{name + '.' + key:42} {columns} {'!' if over else ' '} {table['rows']}")
    return missed


def main(arguments: Sequence[str] | None = None) -> int:
    """Fit, print, write; 1 where a bar is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("data", type=Path, help="folder of the csv files")
    parser.add_argument("--family", choices=sorted(FILES), action="append", help="one family; may be repeated")
    parser.add_argument("--dry-run", action="store_true", help="write nothing")
    chosen = parser.parse_args(arguments)
    missed = 0
    for family in chosen.family or FILES:
        present = (chosen.data / FILES[family]).is_file() and (ROOT / "scripts" / "fit" / f"{family}.py").is_file()
        if not present:
            print(f"{family}: no `{FILES[family]}` or no fit module", file=sys.stderr)
            continue
        module = importlib.import_module(family)
        rows = rows_of(chosen.data, family)
        tables = module.fit(rows)
        missed += print_table(family, tables)
        for line in module.report(rows, tables) if hasattr(module, "report") else ():
            print(line)
        for name, keys in sorted({} if chosen.dry_run else tables.items()):
            write(ROOT / "hardware_db" / "fits" / family / f"{name}.toml", toml(keys))
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
