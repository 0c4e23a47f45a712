"""`torchperf partition`: where each parameter is split, and what one rank runs."""

from __future__ import annotations

import click

from . import options, output


@click.command(
    "partition", short_help="What one rank runs under tensor parallelism: local shapes, collectives, and why."
)
@options.model
@options.tp
@options.sequence_parallel
@options.mode
@options.seq_len
@options.micro_batch
@click.option("--ops", "show_ops", is_flag=True, help="Print the rank's program too: every op with its local shapes.")
@options.json_to
@options.debug
def command(
    model: str, tp: int, sequence_parallel: bool, mode: str, seq_len: int | None, micro_batch: int | None,
    show_ops: bool, json_to: str | None,
) -> None:  # fmt: skip
    """What one rank of MODEL runs when --tp devices share a step.

    The plan is inferred from the recorded program: no module name and no size is looked at.

    \b
    torchperf partition llama-3.1-8b --tp 8 --sequence-parallel
    """
    from torchperf.rank_program import split

    found = split(
        model, tp=tp, sequence_parallel=sequence_parallel, mode=mode, seq_len=seq_len, micro_batch=micro_batch
    )
    if json_to:
        output.write_json(found.as_dict(), json_to)
    if json_to != "-":
        text = found.text
        if show_ops:
            from torchperf.graph.graph import Capture
            from torchperf.graph.text import show

            text += "\n" + show(Capture((found.program,)))
        output.write(text, "-")
