"""`torchperf validate`: measured rows, and what we say of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from . import options, output, progress


def _not_stdout(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    if value == "-":
        raise click.UsageError("`--write` needs a file", ctx)
    return value


write_classes = click.option(
    "--write", "classes_to", metavar="FILE", callback=_not_stdout, help="Keep the errors by GPU and runtime, as TOML: "
    "what `estimate` tells beside its figures, from validated/ of the database.",
)  # fmt: skip
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


@command.command("training")
@data
@click.option("--spec", type=click.Choice(["A", "B", "C"]), help="Rows of one spec alone: A, nothing guessed; C, much.")
@click.option("--key", metavar="KEY", help="Rows of one source alone: the id without its number.")
@write_classes
@options.json_to
@options.debug
def training(data: str, spec: str | None, key: str | None, classes_to: str | None, json_to: str | None) -> None:
    """Training runs: step time and memory.

    \b
    torchperf validate training --data training.csv --key kor22
    """
    from torchperf.report.training import training_table
    from torchperf.validate.training import error_classes, settings_of, validate_training

    with progress.counted("runs") as tell:
        found = validate_training(Path(data), spec=spec, key=key, tell=tell)
    if classes_to:
        _write_classes("training", error_classes(found), classes_to)
    _write_runs(found, training_table, settings_of, json_to)


@command.command("inference")
@data
@click.option("--spec", type=click.Choice(["A", "B", "C"]), help="Rows of one spec alone: A, nothing guessed; C, much.")
@click.option("--key", metavar="KEY", help="Rows of one source alone, as the table names it.")
@write_classes
@options.json_to
@options.debug
def inference(data: str, spec: str | None, key: str | None, classes_to: str | None, json_to: str | None) -> None:
    """Inference runs: first token, time per token, latency and throughput.

    \b
    torchperf validate inference --data inference.csv --key nemo
    """
    from torchperf.report.inference_validation import inference_table
    from torchperf.validate.inference import error_classes, settings_of, validate_inference

    with progress.counted("runs") as tell:
        found = validate_inference(Path(data), spec=spec, key=key, tell=tell)
    if classes_to:
        _write_classes("inference", error_classes(found), classes_to)
    _write_runs(found, inference_table, settings_of, json_to)


def _write_classes(kind: str, found: Any, destination: str) -> None:
    from torchperf.validate.classes import as_toml

    output.write(as_toml(kind, found), destination)


def _write_runs(found: Any, table: Callable[..., str], settings_of: Callable[[Any], str], json_to: str | None) -> None:
    """The rows of a validation of measured runs, with what is known of each case."""
    from torchperf.report.measured_runs import runs_dict

    specs = {id: case.spec for id, case in found.cases.items()}
    if json_to:
        assumed = {id: case.assumptions for id, case in found.cases.items()}
        output.write_json(runs_dict(found.validation, specs, assumed), json_to)
    if json_to != "-":
        settings = {id: settings_of(case) for id, case in found.cases.items()}
        output.write(table(found.validation, specs, settings), "-")


def _run(data: str, kinds: tuple[str, ...], json_to: str | None) -> None:
    from torchperf.report.validation import validation_dict, validation_table
    from torchperf.validate.kernels import validate_kernels

    answer = validate_kernels(Path(data), kinds)
    if json_to:
        output.write_json(validation_dict(answer), json_to)
    if json_to != "-":
        output.write(validation_table(answer), "-")
