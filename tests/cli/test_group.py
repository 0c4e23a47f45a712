"""`torchperf` itself: help for every command, nothing imported that is not used, one way to fail."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from importlib import import_module

import pytest

from torchperf import __version__
from torchperf.cli.group import COMMANDS
from torchperf.graph.errors import TorchperfError

from_shell = [sys.executable, "-c", "from torchperf.cli import main; main(prog_name='torchperf')"]


def test_version(run) -> None:
    assert run("--version").stdout == f"torchperf, version {__version__}\n"


def test_help_lists_every_command_with_its_own_words(run) -> None:
    result = run("--help")
    assert result.exit_code == 0
    words = " ".join(result.stdout.split())
    for name, short in COMMANDS.items():
        assert f"{name} {short}" in words
        assert import_module(f"torchperf.cli.{name}").command.short_help == short


GROUPS = {"hardware": ("list", "show", "check"), "kernel": ("matmul", "attention", "collective")}
GROUPS["validate"] = ("ops", "collectives", "training")


@pytest.mark.parametrize("command", [*COMMANDS, *(f"{group} {name}" for group in GROUPS for name in GROUPS[group])])
def test_every_command_and_option_is_documented(run, command: str) -> None:
    result = run(*command.split(), "--help")
    assert result.exit_code == 0
    assert f"Usage: torchperf {command}" in result.stdout
    parsed = import_module(f"torchperf.cli.{command.split()[0]}").command
    for name in command.split()[1:]:
        parsed = parsed.commands[name]
    assert parsed.help
    assert all(option.help for option in parsed.params if option.param_type_name == "option")
    if command not in GROUPS:
        assert "--debug" in result.stdout


def test_importing_the_command_line_imports_no_command_and_nothing_heavy() -> None:
    code = """
        import sys
        import torchperf.cli
        from click.testing import CliRunner
        assert CliRunner().invoke(torchperf.cli.main, ["--help"]).exit_code == 0
        heavy = {"torch", "numpy", "transformers", "tabulate", "msgspec"}
        heavy |= {"torchperf.pipeline", "torchperf.frontend"}
        commands = {f"torchperf.cli.{name}" for name in torchperf.cli.group.COMMANDS}
        print(sorted((heavy | commands) & set(sys.modules)))
        assert CliRunner().invoke(torchperf.cli.main, ["models"]).exit_code == 0
        print(sorted((heavy | commands) & set(sys.modules)))
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n['tabulate', 'torchperf.cli.models']\n"


def test_an_unknown_command_brings_the_nearest(run) -> None:
    result = run("estimat", "gpt2")
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr == (
        "error: no such command `estimat`; did you mean `estimate`?\n\nhint: see `torchperf --help`\n"
    )


def test_an_unknown_option_names_the_command_to_ask(run) -> None:
    result = run("models", "--jsn", "-")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: no such option `--jsn`")
    assert result.stderr.endswith("hint: see `torchperf models --help`\n")


def test_bad_input_is_one_message_without_a_traceback(run, pipeline) -> None:
    pipeline.answers["estimate"] = TorchperfError(
        "unknown accelerator `x100`", facts=[("where", "hardware_db/accelerators")], hint="nearest: `h100`"
    )
    result = run("estimate", "gpt2", "--gpu", "x100")
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr == (
        "error: unknown accelerator `x100`\n  where  hardware_db/accelerators\n\nhint: nearest: `h100`\n"
    )


def test_debug_shows_the_traceback(run, pipeline) -> None:
    pipeline.answers["estimate"] = TorchperfError("unknown accelerator `x100`")
    result = run("estimate", "gpt2", "--gpu", "x100", "--debug")
    assert result.exit_code == 2
    assert "Traceback (most recent call last)" in result.stderr
    assert result.stderr.endswith("error: unknown accelerator `x100`\n")


def test_a_fault_of_our_own_is_told_as_such(run, pipeline) -> None:
    pipeline.answers["inspect"] = ZeroDivisionError("division by zero")
    result = run("inspect", "gpt2")
    assert result.exit_code == 2
    assert result.stderr == (
        "error: internal: ZeroDivisionError: division by zero\n\n"
        "hint: run again with `--debug` to see where, and report it\n"
    )
    assert "Traceback" in run("inspect", "gpt2", "--debug").stderr


def test_ctrl_c_ends_quietly(run, pipeline) -> None:
    pipeline.answers["estimate"] = KeyboardInterrupt()
    result = run("estimate", "gpt2", "--gpu", "t4")
    assert (result.exit_code, result.stdout, result.stderr) == (130, "", "")


@pytest.mark.skipif(os.name == "nt", reason="pipes close differently")
def test_a_closed_pipe_ends_quietly() -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        done = subprocess.run([*from_shell, "models"], stdout=write, stderr=subprocess.PIPE, text=True)
    finally:
        os.close(write)
    assert (done.returncode, done.stderr) == (130, "")
