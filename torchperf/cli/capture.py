"""`torchperf capture`: run a model once on meta and keep what it did."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from . import options, output
from .failure import refuse

if TYPE_CHECKING:
    from torchperf.graph.graph import Capture


@click.command("capture", short_help="Record a model once and save the graph.")
@options.model
@click.option(
    "-o",
    "--output",
    "file",
    metavar="FILE",
    help="The graph, or with --text its text; `-` is stdout for text.",
)
@options.mode
@options.seq_len
@options.micro_batch
@options.refresh
@click.option("--text", is_flag=True, help="Write the text that reads back, in place of the compact file.")
@options.json_to
@options.debug
def command(
    model: str,
    file: str | None,
    mode: str,
    seq_len: int | None,
    micro_batch: int,
    refresh: bool,
    text: bool,
    json_to: str | None,
) -> None:
    """Record MODEL and save its graph, which `torchperf estimate FILE` prices without torch.

    Sizes stay free: a saved graph serves any micro-batch and sequence length that its model takes.

    \b
    torchperf capture gpt2 -o gpt2-graph.json
    """
    if not text and file in (None, "-"):
        raise refuse("give `-o FILE` to save the graph, or `--text` to print it")
    if text and json_to == "-" and file in (None, "-"):
        raise refuse("only one of `--text` and `--json -` can go to stdout")
    from torchperf.frontend.load import load

    capture, _ = load(model, mode, options.given(batch=micro_batch, seq=seq_len), refresh)
    if text:
        output.write(str(capture), file or "-")
    elif file is not None:
        from torchperf.frontend.store import write

        write(Path(file), capture)
    if json_to:
        from torchperf.report.json import capture_dict

        output.write_json(capture_dict(capture), json_to)
    output.warn_guesses(capture.facts.guesses)
    if file not in (None, "-"):
        ops = max(graph.num_ops for graph in capture.graphs)
        click.echo(f"wrote `{file}`: {ops:,} ops at {', '.join(free(capture))}", err=True)


def free(capture: Capture) -> list[str]:
    """The sizes that stay free, or the reason why none does."""
    limits = dict(capture.facts.limits)
    free = {n for g in capture.graphs for n, low, high, _ in g.facts.ranges if high == -1 or high > low}
    names = [f"`{n}` up to {limits[n]:,}" if n in limits else f"any `{n}`" for n, _ in capture.facts.sizes if n in free]
    return names if names and not capture.facts.fixed else ["fixed sizes"]
