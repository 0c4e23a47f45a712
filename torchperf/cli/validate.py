"""`torchperf validate`: measured rows, and what we say of them."""

from __future__ import annotations

from pathlib import Path

import click

from . import options, output

data = click.option("--data", required=True, metavar="FILE", help="CSV of measured rows; its columns tell the kind.")


@click.group("validate", short_help="Measured times beside ours: error by GPU, worst rows, a plain roofline's.")
def command() -> None:
    """Price every row of a CSV of measurements and compare."""


@command.command("ops")
@data
@options.json_to
@options.debug
def ops(data: str, json_to: str | None) -> None:
    """GEMM, attention and memory-bound kernels.

    \b
    torchperf validate ops --data ops_gemm.csv
    """
    _run(data, ("gemm", "attention", "other"), json_to)


@command.command("collectives")
@data
@options.json_to
@options.debug
def collectives(data: str, json_to: str | None) -> None:
    """Collectives.

    \b
    torchperf validate collectives --data collectives.csv
    """
    _run(data, ("collective",), json_to)


def _run(data: str, kinds: tuple[str, ...], json_to: str | None) -> None:
    from torchperf.report.validation import validation_dict, validation_table
    from torchperf.validate.kernels import validate_kernels

    answer = validate_kernels(Path(data), kinds)
    if json_to:
        output.write_json(validation_dict(answer), json_to)
    if json_to != "-":
        output.write(validation_table(answer), "-")
