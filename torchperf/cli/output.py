"""Where answers go: stdout, or a file that appears whole or not at all. Warnings go to stderr."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from torchperf.graph.errors import TorchperfError
from torchperf.graph.estimate import Unpriced

SHOWN = 5


def write(text: str, destination: str) -> None:
    """The text to stdout for `-`, else to that file: written beside it first, then renamed."""
    if destination == "-":
        click.echo(text, nl=not text.endswith("\n"))
        return
    path = Path(destination)
    temporary: str | None = None
    try:
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text if text.endswith("\n") else text + "\n")
        Path(temporary).chmod(_mode(path))
        Path(temporary).replace(path)
        temporary = None
    except (OSError, ValueError) as error:  # ValueError: a name that holds what none can
        raise unwritable(destination, error) from error
    finally:
        if temporary is not None:
            with suppress(OSError):
                Path(temporary).unlink()


def unwritable(destination: str, error: OSError | ValueError) -> TorchperfError:
    """What to raise where a file could not be written."""
    reason = (getattr(error, "strerror", None) or str(error) or "unwritable").lower()
    hint = "name a file in a folder that exists and that you may write to"
    return TorchperfError(f"cannot write `{destination}`: {reason}", hint=hint)


def write_json(answer: Any, destination: str, indent: int | None = 2) -> None:
    """The answer as JSON, indented or in one line; a number that is not finite is an error, never `NaN`."""
    import json

    write(json.dumps(answer, indent=indent, allow_nan=False), destination)


def warning(text: str) -> None:
    """`warning: ...` on stderr."""
    click.echo(f"warning: {text}", err=True)


def warn_unpriced(unpriced: Sequence[Unpriced]) -> None:
    """Which ops no rule covers, those that move most first."""
    if unpriced:
        ops = sorted(unpriced, key=lambda u: -u.nbytes)
        verb = "op has" if len(ops) == 1 else "ops have"
        warning(f"{len(ops)} {verb} no rule, only the bytes are priced: {_some([f'`{u.op}`' for u in ops])}")


def warn_guesses(guesses: Sequence[str]) -> None:
    """What was guessed because the model reads it from data."""
    if guesses:
        warning(f"{len(guesses)} {'guess' if len(guesses) == 1 else 'guesses'} made: {_some(guesses, '; ')}")


def _some(names: Sequence[str], joint: str = ", ") -> str:
    more = f"{joint}and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return joint.join(names[:SHOWN]) + more


def _mode(path: Path) -> int:
    """Permissions of the file that is replaced, else what the umask leaves of rw-rw-rw-."""
    with suppress(OSError):
        return path.stat().st_mode & 0o777
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask
