"""How a command ends when it cannot do what was asked: one message on stderr, exit code 2, no traceback."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

import click

from torchperf.graph.errors import TorchperfError

ERROR = 2
INTERRUPTED = 130
DEBUG = "torchperf.debug"  # key of click's context: is the traceback wanted
Result = TypeVar("Result")


def guarded(call: Callable[[], Result], debug: Callable[[], bool]) -> Result:
    """What `call` returns; what it raises becomes a message on stderr and an exit code.

    Bad input and wrong usage end with 2, and so does a fault of our own, told as `internal`.
    Ctrl-C and a closed pipe end quietly with 130.
    """
    try:
        result = call()
        sys.stdout.flush()
        return result
    except click.exceptions.NoArgsIsHelpError:
        raise
    except click.exceptions.Exit:
        raise
    except click.ClickException as error:
        message(_usage(error), _see_help(error))
    except (click.Abort, KeyboardInterrupt):
        raise click.exceptions.Exit(INTERRUPTED) from None
    except BrokenPipeError:
        _silence_stdout()
        raise click.exceptions.Exit(INTERRUPTED) from None
    except TorchperfError as error:
        _traceback(debug)
        message(str(error))
    except Exception as error:
        if debug():
            _traceback(debug)
            message(f"internal: {type(error).__name__}: {error}")
        else:
            message(
                f"internal: {type(error).__name__}: {error}",
                "run again with `--debug` to see where, and report it",
            )
    raise click.exceptions.Exit(ERROR)


def message(text: str, hint: str | None = None) -> None:
    """`error: ...` on stderr, and a hint after a blank line."""
    click.echo(f"error: {text}" + (f"\n\nhint: {hint}" if hint else ""), err=True)


def refuse(text: str) -> click.UsageError:
    """A usage error of the command that runs, for `raise`."""
    return click.UsageError(text, ctx=click.get_current_context(silent=True))


def _usage(error: click.ClickException) -> str:
    """click's sentence in the style of the others: lower case, no full stop, literals in backticks."""
    text = re.sub(r"'([^']*)'", r"`\1`", error.format_message()).rstrip(".")
    return text[:1].lower() + text[1:]


def _see_help(error: click.ClickException) -> str | None:
    context = error.ctx if isinstance(error, click.UsageError) else None
    return f"see `{context.command_path} --help`" if context else None


def _traceback(debug: Callable[[], bool]) -> None:
    if debug():
        import traceback

        click.echo(traceback.format_exc(), err=True)


def _silence_stdout() -> None:
    """Let the interpreter's last flush of stdout go nowhere, instead of failing again."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
