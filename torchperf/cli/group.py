"""`torchperf` itself: a group that imports a command's module when that command is called, and no other."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import click

from torchperf import __version__

from .failure import DEBUG, guarded
from .progress import captures

# name -> what `torchperf --help` says of it; the module of the same name holds `command`
COMMANDS = {
    "estimate": "Does it fit, how long is a step, and where does the time go.",
    "explain": "How a number of a saved answer comes about, down to formulas and sources.",
    "mfu": "MFU and HFU of a measured run in each convention; its days and dollars.",
    "capture": "Record a model once and save the graph.",
    "inspect": "Parameters, FLOPs, bytes and activations by module.",
    "partition": "What one rank of a plan runs: local shapes, collectives, stages, and why.",
    "kernel": "One kernel's or collective's price with its terms and sources.",
    "validate": "Measured times beside ours: error by GPU, worst rows, a plain roofline's.",
    "hardware": "The hardware database: list it, show a record with its sources, check a file.",
    "models": "The bundled model configs.",
}


class LazyGroup(click.Group):
    """Commands by name, imported on use; whatever fails ends in one message."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = import_module(f"torchperf.cli.{cmd_name}").command
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            from difflib import get_close_matches

            near = get_close_matches(args[0], COMMANDS, n=1)
            raise click.UsageError(
                f"no such command `{args[0]}`" + (f"; did you mean `{near[0]}`?" if near else ""), ctx
            )
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def make_context(self, info_name: str | None, args: list[str], *rest: Any, **extra: Any) -> click.Context:
        return guarded(lambda: super(LazyGroup, self).make_context(info_name, args, *rest, **extra), lambda: False)

    def invoke(self, ctx: click.Context) -> Any:
        def call() -> Any:
            with captures():
                return super(LazyGroup, self).invoke(ctx)

        return guarded(call, lambda: bool(ctx.meta.get(DEBUG)))


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="torchperf")
def main() -> None:
    """What a PyTorch model costs to train, on hardware you do not have.

    The model itself runs without weights and without a GPU; every operator is counted and priced.

    \b
    torchperf estimate llama-3.1-8b --gpu h200-sxm --seq-len 4096
    torchperf estimate ./model.py --gpu h100-sxm-80gb --runtime compile
    """
