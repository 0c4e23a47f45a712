"""`torchperf inspect`: what a model is, before any hardware."""

from __future__ import annotations

import click

from . import options, output


@click.command("inspect", short_help="Parameters, FLOPs, bytes and activations by module.")
@options.model
@click.option(
    "--depth",
    callback=options.count,
    default=3,
    show_default=True,
    help="How deep into the modules, counted in dots.",
)
@options.mode
@options.seq_len
@options.micro_batch
@options.precision
@options.json_to
@options.debug
def command(
    model: str,
    depth: int,
    mode: str,
    seq_len: int | None,
    micro_batch: int | None,
    precision: str,
    json_to: str | None,
) -> None:
    """Parameters, FLOPs, bytes and activations of MODEL, by module to a given depth.

    \b
    torchperf inspect gpt2 --depth 2 --seq-len 512
    """
    from torchperf.inspection import inspect

    answer = inspect(
        model,
        mode=mode,
        depth=depth,
        precision=precision,
        seq_len=seq_len,
        micro_batch=micro_batch,
    )
    output.warn_guesses(answer.guesses)
    if json_to:
        from torchperf.report.json import inspection_dict

        output.write_json(inspection_dict(answer), json_to)
    if json_to != "-":
        from torchperf.report.table import inspection_table

        output.write(inspection_table(answer), "-")
