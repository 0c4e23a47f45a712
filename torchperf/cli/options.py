"""Arguments and options that several commands share, and the kinds of numbers they take."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from .failure import DEBUG

Command = TypeVar("Command", bound=Callable[..., Any])


def count(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    """Callback of an option that takes a whole number from 1 on: `4096`, `1_000_000`, `1e12`."""
    if value is None:
        return None
    given = f"`{param.opts[0]}` is `{value}`"
    try:
        number = Decimal(value)
    except InvalidOperation:
        raise click.UsageError(f"{given}: it must be a whole number, such as `4096` or `1e12`", ctx) from None
    if not number.is_finite() or number.adjusted() > 30 or number != number.to_integral_value():
        raise click.UsageError(f"{given}: it must be a whole number", ctx)
    if number < 1:
        raise click.UsageError(f"{given}: it must be at least 1", ctx)
    return int(number)


def positive(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    """Callback of an option that takes a number above 0."""
    if value is None:
        return None
    given = f"`{param.opts[0]}` is `{value}`"
    try:
        number = float(value)
    except ValueError:
        raise click.UsageError(f"{given}: it must be a number", ctx) from None
    if not 0 < number < float("inf"):
        raise click.UsageError(f"{given}: it must be above 0", ctx)
    return number


def share(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    """Callback of an option that takes a share: above 0, at most 1."""
    number = positive(ctx, param, value)
    if number is not None and number > 1:
        raise click.UsageError(f"`{param.opts[0]}` is `{value}`: it must be at most 1", ctx)
    return number


def explicit(name: str) -> bool:
    """Whether the user gave this option of the command that runs."""
    source = click.get_current_context().get_parameter_source(name)
    return source not in (None, ParameterSource.DEFAULT)


def given(**sizes: int | None) -> dict[str, int]:
    """The sizes that the user named; the others are left to the model's own defaults."""
    return {name: size for name, size in sizes.items() if size is not None}


def _set_debug(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value:
        ctx.meta[DEBUG] = True


def debug(command: Command) -> Command:
    """`--debug`, which every command has; read by the group when something fails."""
    return click.option(
        "--debug",
        is_flag=True,
        expose_value=False,
        callback=_set_debug,
        is_eager=True,
        help="Show the traceback of an error.",
    )(command)


model = click.argument("model", metavar="MODEL")
gpu = click.option(
    "--gpu",
    required=True,
    metavar="NAME",
    help="Accelerator: a name (`torchperf hardware list`) or a TOML file.",
)
num_gpus = click.option(
    "--num-gpus", default="1", metavar="N", callback=count, show_default=True, help="Number of GPUs."
)
power_cap = click.option(
    "--power-cap", callback=positive, metavar="WATTS", help="Power that the device may draw, below its TDP."
)
mode = click.option(
    "--mode",
    type=click.Choice(["train", "forward"]),
    default="train",
    show_default=True,
    help="A training step, or a forward pass.",
)
seq_len = click.option(
    "--seq-len", metavar="N", callback=count, help="Sequence length, in tokens.  [default: the model's own]"
)
micro_batch = click.option(
    "--micro-batch",
    metavar="N",
    callback=count,
    help="Samples in one step of one device.  [default: the model's own inputs, else 1]",
)
precision = click.option(
    "--precision",
    default="bf16-mixed",
    show_default=True,
    metavar="NAME",
    help="bf16-mixed, bf16, fp16-mixed, fp32, tf32, or a recipe of the linear layers: fp8-delayed, fp8-current, "
    "fp8-tensorwise, fp8-rowwise, fp8-rowwise-gw-hp, fp8-blockwise, mxfp8, nvfp4; these keep layers at either end high "
    "with `:first=1,last=4`.",
)
refresh = click.option("--refresh", is_flag=True, help="Capture the model again, whatever the cache holds.")
json_to = click.option(
    "--json", "json_to", metavar="FILE|-", help="Write JSON to a file, or to stdout in place of the table."
)
