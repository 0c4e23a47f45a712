"""`--help` of every command shows a worked example, and the example is one that the command takes."""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Callable, Iterator

import click
import pytest
from click.testing import Result

from torchperf.cli import main

CHEAP = ("models", "hardware list", "hardware show", "kernel")


def commands(words: tuple[str, ...] = (), command: click.Command = main) -> Iterator[str]:
    """Every command that is no group."""
    if not isinstance(command, click.Group):
        yield " ".join(words)
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        found = command.get_command(context, name)
        assert found is not None
        yield from commands((*words, name), found)


def found(name: str) -> click.Command:
    command: click.Command | None = main
    for word in name.split():
        assert isinstance(command, click.Group)
        command = command.get_command(click.Context(command), word)
    assert command is not None
    return command


def examples(name: str) -> list[list[str]]:
    """The words after `torchperf` of each example; a deeper indent goes on with the line above."""
    told: list[str] = []
    for line in inspect.cleandoc(found(name).help or "").splitlines():
        text = line.strip().rstrip("\\").strip()
        if line.startswith("torchperf "):
            told.append(text)
        elif told and text and line.startswith("    "):
            told[-1] += " " + text
        elif told:
            break
    return [shlex.split(line)[1:] for line in told]


@pytest.mark.parametrize("name", list(commands()))
def test_an_example_that_parses(command: Callable[..., Result], name: str) -> None:
    own = [words for words in examples(name) if " ".join(words).startswith(name)]
    assert own, f"`torchperf {name} --help` shows no example"
    for words in own:
        rest = words[len(name.split()) :]
        names = main.context_settings["help_option_names"]  # a command keeps the first that it is asked with
        with found(name).make_context(name, rest, help_option_names=names) as context:
            assert context.params
        if name.startswith(CHEAP):
            done = command(*words)
            assert done.exit_code == 0, done.output
            assert done.stdout
    assert "torchperf " in command(*name.split(), "--help").stdout
