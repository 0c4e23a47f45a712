"""The one exception that bad input ends in, and how it reads."""

from __future__ import annotations

from collections.abc import Sequence

LONGEST = 2000  # characters of a message or a fact


class TorchperfError(Exception):
    """Input that cannot be used, told in one message.

    message   lower case, no full stop, literals in backticks
    facts     (label, value) pairs, one fact a line: the file, the key, the flag, the op
    hint      what to do about it
    """

    def __init__(self, message: str, *, facts: Sequence[tuple[str, str]] = (), hint: str | None = None) -> None:
        message = _shown(message)
        super().__init__(message)
        self.message = message
        self.facts = tuple((label, _shown(value)) for label, value in facts)
        self.hint = hint

    def __str__(self) -> str:
        lines = [self.message]
        width = max((len(label) for label, _ in self.facts), default=0)
        lines += [f"  {label:<{width}}  {value}" for label, value in self.facts]
        if self.hint:
            lines += ["", f"hint: {self.hint}"]
        return "\n".join(lines)


def _shown(text: str) -> str:
    """On one line, and of a bounded length: what was given may hold anything, a terminal's escape codes too."""
    if not text.isprintable():
        text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."
