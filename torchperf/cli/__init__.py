"""The command line: argv -> calls -> text. The only folder that prints or exits."""

from .group import main

__all__ = ["main"]
