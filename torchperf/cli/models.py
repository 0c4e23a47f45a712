"""`torchperf models`: the configs that come with torchperf."""

from __future__ import annotations

import click

from . import options, output


@click.command("models", short_help="The bundled model configs.")
@options.json_to
@options.debug
def command(json_to: str | None) -> None:
    """List the bundled model configs with their parameters and where each is published.

    \b
    torchperf models
    """
    from torchperf import configs

    notes = {name: configs.notes(name) for name in configs.names()}
    if json_to:
        output.write_json([{"name": name, **note} for name, note in notes.items()], json_to)
    if json_to != "-":
        from torchperf.report.table import models_table

        rows = [(name, int(n["parameters"]), str(n["source"]), str(n.get("note", ""))) for name, n in notes.items()]
        output.write(models_table(rows), "-")
