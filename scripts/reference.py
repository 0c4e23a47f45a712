"""Writes REFERENCE.md: every value of the hardware database with its reference, every command, the bibliography.

python scripts/reference.py            write it
python scripts/reference.py --check    exit 1 where it differs from what would be written
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from torchperf import hardware
from torchperf.cli import main as main_command
from torchperf.graph.system import Accelerator, Fit, Interconnect, Sourced
from torchperf.hardware.database import database
from torchperf.report import hardware as show
from torchperf.report.record import Hardware, groups

FILE = Path(__file__).resolve().parent.parent / "REFERENCE.md"
OPENING = """# Reference: hardware, runtimes, commands

Written by `scripts/reference.py` from `hardware_db/`; do not edit. A value's **basis** is datasheet, whitepaper,
measured, fitted, derived or assumed; **source** is a key of the [bibliography](#bibliography), which says what was
read. Peaks are dense, operations of int8 count as FLOPs. GB = 1e9 bytes, GiB = 2^30 bytes.
"""
PREFIXES = (
    ("P", 1e15),
    ("T", 1e12),
    ("G", 1e9),
    ("M", 1e6),
    ("k", 1e3),
    ("", 1.0),
    ("m", 1e-3),
    ("u", 1e-6),
    ("n", 1e-9),
)
BINARY = (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10), ("B", 1))
_ENTRY = re.compile(r"^@\w+\{(\w+),\n(.*?)^\}", re.MULTILINE | re.DOTALL)
_FIELD = re.compile(r"^\s*(\w+) = \{(.*)\},?$", re.MULTILINE)


def main() -> None:
    """Write the file, or compare it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    text = reference()
    if not parser.parse_args().check:
        FILE.write_text(text, encoding="utf-8")
    elif not FILE.is_file() or FILE.read_text(encoding="utf-8") != text:
        sys.exit("REFERENCE.md is stale: run `python scripts/reference.py`")


def reference() -> str:
    """REFERENCE.md as the database would have it."""
    kinds: dict[str, list[Hardware]] = {
        "Accelerators": [hardware.load_accelerator(name) for name in hardware.accelerator_names()],
        "Interconnects": [hardware.load_interconnect(name) for name in hardware.interconnect_names()],
        "Systems": [hardware.load_system(name) for name in hardware.system_names()],
        "Runtimes": [hardware.load_runtime(name) for name in hardware.runtime_names()],
    }
    parts = [OPENING, "\n".join(contents(kinds)) + "\n"]
    for kind, records in kinds.items():
        parts.append(f"## {kind}\n")
        parts += ["\n".join(section(record)) + "\n" for record in records]
    parts.append("## Command line\n\n" + "\n".join(command_line()) + "\n")
    parts.append("## Bibliography\n\n" + "\n".join(bibliography()) + "\n")
    return "\n".join(parts)


def command_line() -> Iterator[str]:
    """What `--help` says of every command."""
    from click.testing import CliRunner

    runner = CliRunner()
    for words, _ in commands():
        done = runner.invoke(main_command, [*words, "--help"], prog_name="torchperf", terminal_width=100)
        title = " ".join(("torchperf", *words))
        yield f"### {title}\n\n```text\n{done.stdout.rstrip()}\n```\n"


def commands() -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every command with the words that name it, the groups themselves left out."""

    def below(words: tuple[str, ...], command: click.Command) -> Iterator[tuple[tuple[str, ...], click.Command]]:
        if not isinstance(command, click.Group):
            yield words, command
            return
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from below((*words, name), found)

    yield from below((), main_command)


def contents(kinds: dict[str, list[Hardware]]) -> Iterator[str]:
    """How many records of each kind there are, and how many of their values are assumed."""
    rows = []
    for kind, records in kinds.items():
        values = [value for record in records for _, value in groups(record)[0][2]]
        assumed = sum(value.basis == "assumed" for value in values)
        rows.append((f"[{kind}](#{kind.lower()})", str(len(records)), str(len(values)), str(assumed)))
    yield from table(("", "records", "values", "of these assumed"), rows)


def section(record: Hardware) -> Iterator[str]:
    """One record: who it is, its values, its own fits."""
    first, *rest = show.facts(record)
    yield f"### {record.name}\n"
    told = [first.removeprefix(f"{record.name}: "), *(line for line in rest if not line.startswith("file: "))]
    yield "; ".join(told) + ".\n"
    yield from table(("", "value", "basis", "source", "scope; condition"), [row(k, v) for k, v in groups(record)[0][2]])
    if isinstance(record, (Accelerator, Interconnect)):
        own = [fit for fit in record.fits if fit.basis == "fitted"]
        if own:
            yield ""
            yield from table(("fit", "parameters", "rows; range", "median", "p90", "source"), [fit_row(f) for f in own])


def row(key: str, value: Sourced) -> tuple[str, ...]:
    """A value and its reference."""
    note = "; ".join(part for part in (value.scope, value.condition) if part)
    return f"`{key}`", number(value), value.basis, value.source, note


def number(value: Sourced) -> str:
    """A value to five digits, bytes in binary units, rates in decimal ones."""
    scales = BINARY if value.unit == "B" else PREFIXES
    if value.unit == "1" or value.value == 0:
        return f"{value.value:g}" + ("" if value.unit == "1" else f" {value.unit}")
    prefix, factor = next((p, f) for p, f in scales if value.value >= f * (1 - 1e-9) or f == scales[-1][1])
    scaled = f"{value.value / factor:.5g}"
    return f"{scaled} {prefix}" if value.unit == "B" else f"{scaled} {prefix}{value.unit}"


def fit_row(fit: Fit) -> tuple[str, ...]:
    """A fit, its rows and its error on rows held out."""
    parameters = ", ".join(f"{name} {number:.4g}" for name, number in fit.parameters)
    errors = (f"{fit.median_error:.1%}", f"{fit.p90_error:.1%}")
    return f"`{fit.name}`", parameters, f"{fit.rows}; {fit.range}", *errors, fit.source


def table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """A Markdown table."""
    for cells in (headers, ["---"] * len(headers), *rows):
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def bibliography() -> Iterator[str]:
    """The entries of sources.bib: title, place, year, what was read."""
    text = (database().root / "sources.bib").read_text(encoding="utf-8")
    for key, body in _ENTRY.findall(text):
        field = {name: re.sub(r"[{}]|\\(?=[_%&])", "", value) for name, value in _FIELD.findall(body)}
        place = field.get("url") or field["howpublished"]
        author = f"{field['author']}. " if "author" in field else ""
        year = f", {field['year']}" if "year" in field else ""
        yield f"- **{key}**: {author}{field['title']}{year}. {place}. {field['note']}."


if __name__ == "__main__":
    main()
