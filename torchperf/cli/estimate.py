"""`torchperf estimate`: the main job."""

from __future__ import annotations

import click

from . import options, output
from .failure import refuse

DOES_NOT_FIT = 1


@click.command("estimate", short_help="Does it fit, how long is a step, and where does the time go.")
@options.model
@options.gpu
@options.num_gpus
@options.mode
@options.seq_len
@options.micro_batch
@options.precision
@click.option(
    "--optimizer",
    type=click.Choice(["adamw", "adam8bit", "sgd", "adafactor", "lion"]),
    default="adamw",
    show_default=True,
    help="Optimizer, priced from the parameters.",
)
@click.option(
    "--recompute",
    type=click.Choice(["none", "full"]),
    default="none",
    show_default=True,
    help="Recompute activations in backward.",
)
@click.option(
    "--attention",
    type=click.Choice(["auto", "flash", "unfused"]),
    default="auto",
    show_default=True,
    help="Form of attention; auto: as written under eager, flash under a runtime that fuses.",
)
@click.option("--runtime", default="eager", show_default=True, metavar="NAME", help="eager, compile, or a TOML file.")
@options.tp
@options.sequence_parallel
@options.power_cap
@click.option("--strict", is_flag=True, help="An op without a rule is an error.")
@options.refresh
@options.json_to
@click.option(
    "--csv",
    "csv_to",
    metavar="FILE|-",
    help="Write the shares as CSV to a file, or to stdout in place of the table.",
)
@click.option("--markdown", is_flag=True, help="Print Markdown in place of the table.")
@options.debug
@click.pass_context
def command(
    ctx: click.Context,
    model: str,
    gpu: str,
    num_gpus: int,
    mode: str,
    seq_len: int | None,
    micro_batch: int | None,
    precision: str,
    optimizer: str,
    recompute: str,
    attention: str,
    runtime: str,
    tp: int,
    sequence_parallel: bool,
    power_cap: float | None,
    strict: bool,
    refresh: bool,
    json_to: str | None,
    csv_to: str | None,
    markdown: bool,
) -> None:
    """Does MODEL fit on a GPU, how long is a step, and where does the time go.

    MODEL is a model.py (or model.py:name), a folder with config.json, a saved graph, a bundled name
    (`torchperf models`) or a hub id.

    Exits with 0 where it fits, 1 where it does not, 2 on an error.
    """
    if [json_to, csv_to].count("-") + markdown > 1:
        raise refuse("only one of `--json -`, `--csv -` and `--markdown` can go to stdout")
    from torchperf import pipeline

    answer = pipeline.estimate(
        model,
        gpu=gpu,
        num_gpus=num_gpus,
        mode=mode,
        precision=precision,
        optimizer=optimizer,
        recompute=recompute,
        attention=attention,
        runtime=runtime,
        strict=strict,
        refresh=refresh,
        seq_len=seq_len,
        micro_batch=micro_batch,
        tp=tp,
        sequence_parallel=sequence_parallel,
        power_cap=power_cap,
    )
    output.warn_unpriced(answer.unpriced)
    output.warn_guesses(answer.guesses)
    if json_to:
        from torchperf.report.json import estimate_dict

        output.write_json(estimate_dict(answer), json_to)
    if csv_to:
        from torchperf.report.csv import estimate_csv

        output.write(estimate_csv(answer), csv_to)
    if markdown:
        from torchperf.report.markdown import estimate_markdown

        output.write(estimate_markdown(answer), "-")
    elif "-" not in (json_to, csv_to):
        from torchperf.report.table import estimate_table

        output.write(estimate_table(answer), "-")
    ctx.exit(DOES_NOT_FIT if answer.verdict == "does not fit" else 0)
