"""`torchperf explain`: how a number of a saved answer comes about."""

from __future__ import annotations

from pathlib import Path

import click

from torchperf.graph.errors import TorchperfError

from . import options, output


@click.command("explain", short_help="How a number of a saved answer comes about, down to formulas and sources.")
@click.argument("file")
@click.argument("what", default="")
@click.option("--depth", metavar="N", callback=options.count, help="Levels below each line.  [default: 2, all of WHAT]")
@options.json_to
@options.debug
def command(file: str, what: str, depth: int | None, json_to: str | None) -> None:
    """How the numbers of FILE come about, which `torchperf estimate MODEL ... --json FILE` has written.

    WHAT is a line of the tree: `step-time`, `backward`, `matmul`, `activations`, `ttft`, a module. All below it is
    shown: what it is the sum of, each kernel's formula with its numbers, and the file and source of each constant.

    \b
    torchperf estimate gpt2 --gpu h100-sxm-80gb --json gpt2.json
    torchperf explain gpt2.json optimizer
    """
    from torchperf.report.explanation import explanation_text, named
    from torchperf.report.explanation_json import explanation_dict, explanation_of

    found = explanation_of(_read(file), file)
    if json_to:
        from dataclasses import replace

        output.write_json(explanation_dict(replace(found, lines=tuple(named(found.lines, what)))), json_to)
    if json_to != "-":
        output.write(explanation_text(found, what, depth), "-")


def _read(file: str) -> object:
    import json

    try:
        found: object = json.loads(Path(file).read_text("utf-8"))
        return found
    except OSError as error:
        reason = (error.strerror or "unreadable").lower()
        raise TorchperfError(f"cannot read `{file}`: {reason}", hint="give the file of `--json FILE`") from None
    except (ValueError, RecursionError) as error:
        raise TorchperfError(
            f"`{file}` is no JSON", facts=[("reason", str(error))], hint="give the file of `--json FILE`"
        ) from None
