"""Writes the outputs that README.md shows anew: `python scripts/readme.py` (`--check` only compares)."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

README = Path(__file__).resolve().parent.parent / "README.md"
FIRST = re.compile(r"\.venv/bin/(torchperf estimate .*)")
SHOWN = re.compile(r"(## What it prints\n\n```\n)(.*?)(```\n)", re.DOTALL)
PROMPT = re.compile(r"(```\n\$ (torchperf (?:[^\n]*\\\n)*[^\n]*)\n)(.*?)(```\n)", re.DOTALL)


def output(command: str) -> str:
    """What a command line of `torchperf`, which may end in a pipe, prints."""
    code = "from torchperf.cli import main; main()"
    shell = f'torchperf() {{ {shlex.quote(sys.executable)} -c "{code}" "$@"; }}; {command}'
    return subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=True).stdout


def main() -> int:
    """Put the output of the first command where the README shows it, and of each `$ torchperf ...` below it.

    1 where --check finds one stale.
    """
    text = README.read_text(encoding="utf-8")
    command = FIRST.search(text)
    assert command is not None
    first = output(command[1])
    fresh = SHOWN.sub(lambda found: found[1] + first + found[3], text)
    fresh = PROMPT.sub(lambda found: found[1] + output(found[2]) + found[4], fresh)
    if "--check" in sys.argv:
        return int(fresh != text)
    README.write_text(fresh, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
