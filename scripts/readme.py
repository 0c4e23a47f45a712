"""Writes the output that README.md shows anew: `python scripts/readme.py` (`--check` only compares)."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).resolve().parent.parent / "README.md"
SHOWN = re.compile(r"(## What it prints\n\n```\n)(.*?)(```\n)", re.DOTALL)


def main() -> int:
    """Run the README's first command and put its output where the README shows it; 1 where --check finds it stale."""
    text = README.read_text(encoding="utf-8")
    command = re.search(r"\.venv/bin/torchperf (estimate .*)", text)
    assert command is not None
    code = "from torchperf.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code, *command[1].split()], capture_output=True, text=True, check=True)
    fresh = SHOWN.sub(lambda found: found[1] + done.stdout + found[3], text)
    if "--check" in sys.argv:
        return int(fresh != text)
    README.write_text(fresh, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
