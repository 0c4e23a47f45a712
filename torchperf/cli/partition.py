"""`torchperf partition`: where each parameter is split, and what one rank runs."""

from __future__ import annotations

from typing import Any

import click

from . import options, output
from .plan_options import parallelism, plan_of


@click.command("partition", short_help="What one rank of a plan runs: local shapes, collectives, stages, and why.")
@options.model
@parallelism
@click.option("--num-gpus", metavar="N", callback=options.count, help="Number of GPUs.  [default: what the plan needs]")
@click.option("--runtime", default="eager", show_default=True, metavar="NAME", help="Runtime; it says what is sharded.")
@options.mode
@options.seq_len
@options.micro_batch
@click.option("--ops", "show_ops", is_flag=True, help="Print the rank's program too: every op with its local shapes.")
@options.json_to
@options.debug
def command(model: str, micro_batch: int | None, show_ops: bool, json_to: str | None, **given: Any) -> None:
    """What one rank of MODEL runs under a plan.

    Where tensor parallelism splits is inferred from the recorded program, unless --tp-plan says so.

    \b
    torchperf partition llama-3.1-8b --tp 8 --sequence-parallel
    """
    from torchperf.rank_program import split

    plan = plan_of(given, micro_batch)
    found = split(model, plan=plan, micro_batch=micro_batch, **given)
    if json_to:
        output.write_json(found.as_dict(), json_to)
    if json_to != "-":
        text = found.text
        if show_ops:
            from torchperf.graph.graph import Capture
            from torchperf.graph.text import show

            text += "\n" + show(Capture((found.program,)))
        output.write(text, "-")
