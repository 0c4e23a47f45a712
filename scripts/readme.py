"""Writes the outputs that README.md shows anew: `python scripts/readme.py` (`--check` only compares)."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
FIRST = re.compile(r"\.venv/bin/(torchperf estimate .*)")
SHOWN = re.compile(r"(## What it prints\n\n```\n)(.*?)(```\n)", re.DOTALL)
PROMPT = re.compile(r"(```\n\$ (torchperf (?:[^\n]*\\\n)*[^\n]*)\n)(.*?)(```\n)", re.DOTALL)
FILE = re.compile(r"`([a-z]+\.csv)`:\n\n```csv\n(.*?)```\n", re.DOTALL)


def output(command: str, folder: Path) -> str:
    """What a command line of `torchperf`, which may end in a pipe, prints in `folder`."""
    code = "from torchperf.cli import main; main()"
    shell = f'torchperf() {{ {shlex.quote(sys.executable)} -c "{code}" "$@"; }}; {command}'
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        ["bash", "-c", shell], capture_output=True, text=True, check=True, cwd=folder, env=environment
    )
    return done.stdout


def shown(text: str) -> str:
    """The README with every output as it is now."""
    command = FIRST.search(text)
    assert command is not None
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file in FILE.finditer(text):
            (folder / file[1]).write_text(file[2], encoding="utf-8")
        first = output(command[1], folder)
        fresh = SHOWN.sub(lambda found: found[1] + first + found[3], text)
        return PROMPT.sub(lambda found: found[1] + output(found[2], folder) + found[4], fresh)


def main() -> int:
    """Put the output of the first command where the README shows it, and of each `$ torchperf ...` below it.

    They run where the CSV files that the README shows are. 1 where --check finds one stale.
    """
    text = README.read_text(encoding="utf-8")
    fresh = shown(text)
    if "--check" in sys.argv:
        return int(fresh != text)
    README.write_text(fresh, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
