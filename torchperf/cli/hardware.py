"""`torchperf hardware list | show NAME | check FILE`: the database, each value with its source."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from torchperf.graph.errors import TorchperfError

from . import options, output

if TYPE_CHECKING:
    from torchperf.report.record import Hardware


@click.group("hardware", short_help="The hardware database: list it, show a record with its sources, check a file.")
def command() -> None:
    """The hardware database: list it, show a record with its sources, check a file of your own."""


@command.command("list")
@options.json_to
@options.debug
def list_records(json_to: str | None) -> None:
    """List the accelerators and the systems.

    \b
    torchperf hardware list
    """
    from torchperf import hardware

    accelerators = [hardware.load_accelerator(name) for name in hardware.accelerator_names()]
    systems = [hardware.load_system(name) for name in hardware.system_names()]
    if json_to:
        from torchperf.report.json import hardware_dict

        answer = {
            "accelerators": [hardware_dict(a) for a in accelerators],
            "systems": [hardware_dict(s) for s in systems],
        }
        output.write_json(answer, json_to)
    if json_to != "-":
        from torchperf.report.table import hardware_list_table

        output.write(hardware_list_table(accelerators, systems), "-")


@command.command("show")
@click.argument("name")
@options.json_to
@options.debug
def show(name: str, json_to: str | None) -> None:
    """Show a record, each value with unit, basis, source and condition.

    NAME is an accelerator, a system, an interconnect or a runtime, or the TOML file of one.

    \b
    torchperf hardware show h100-sxm-80gb
    """
    record = _load(name)
    if json_to:
        from torchperf.report.json import hardware_dict

        output.write_json(hardware_dict(record), json_to)
    if json_to != "-":
        from torchperf.report.table import hardware_table

        output.write(hardware_table(record), "-")


@command.command("check")
@click.argument("file")
@options.debug
def check(file: str) -> None:
    """Check a file: its form, its sources, and that its values make sense together.

    FILE is the TOML file of an accelerator, an interconnect, a system, a runtime or of fits. Every fault of it is
    told at once, and ends with exit code 2.

    \b
    torchperf hardware check ./my-gpu.toml
    """
    from torchperf.hardware import check_file

    record = check_file(file)
    if isinstance(record, tuple):
        what = f"{len(record)} fit" + ("s" if len(record) != 1 else "")
    else:
        what = f"{type(record).__name__.lower()} `{record.name}`"
    output.write(f"ok: {what}\n", "-")


def _load(name: str) -> Hardware:
    """The record of that name, alias or file, of any kind; an accelerator's error where none is."""
    from torchperf.hardware import load_accelerator, load_interconnect, load_runtime, load_system

    loaders: dict[str, Callable[[str], Hardware]] = {
        "accelerators": load_accelerator,
        "systems": load_system,
        "interconnects": load_interconnect,
        "runtimes": load_runtime,
    }
    return loaders[_kind(name)](name)


def _kind(name: str) -> str:
    """Which folder of the database has the name; of a file, what its keys tell."""
    from torchperf.hardware.check import kind_of
    from torchperf.hardware.database import database

    db = database()
    if name.endswith(".toml") or "/" in name:
        kind = kind_of(db.parsed(Path(name))) if Path(name).is_file() else "accelerators"
        if kind == "fits":
            raise TorchperfError(f"`{name}` holds fits", hint=f"check it with `torchperf hardware check {name}`")
        return kind
    for kind in ("accelerators", "systems", "interconnects", "runtimes"):
        try:
            db.find(kind, name)
            return kind
        except TorchperfError as error:
            if not error.message.startswith("unknown"):
                return kind
    return "accelerators"
