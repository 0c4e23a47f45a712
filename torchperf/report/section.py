"""One part of a report, and how it reads as text (100 columns, no colour) and as Markdown."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

WIDTH = 100
NARROWEST = 14  # a flexible column is not squeezed below this


@dataclass(frozen=True, slots=True)
class Section:
    """A table, or lines, or both.

    title     heads the first column of the table, or stands over the lines
    headers   of the further columns
    rows      cells as text, the first column included
    right     columns aligned right
    flexible  columns that give way where a row is wider than the page: the middle of a cell is cut out
    wrapped   columns that give way by going on in the next line
    items     a bullet each, after the table
    lines     sentences, after the table
    tight     no blank line before it
    """

    title: str
    headers: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    right: tuple[int, ...] = ()
    flexible: tuple[int, ...] = ()
    wrapped: tuple[int, ...] = ()
    items: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()
    tight: bool = False


def text(sections: Sequence[Section]) -> str:
    """The sections as plain text, a blank line between them, 100 columns where cells can give way."""
    shown = [section for section in sections if _has_content(section)]
    return "".join(("" if i == 0 or section.tight else "\n") + _text(section) + "\n" for i, section in enumerate(shown))


def markdown(sections: Sequence[Section]) -> str:
    """The sections as GitHub Markdown; nothing is cut."""
    return "\n\n".join(_markdown(section) for section in sections if _has_content(section)) + "\n"


def _has_content(section: Section) -> bool:
    return bool(section.rows or section.items or section.lines)


def _text(section: Section) -> str:
    parts = []
    if section.rows:
        headers = (section.title, *section.headers)
        rows = _squeezed(section, headers)
        parts.append(_table(section, headers, rows, "plain"))
    elif section.title and section.items:
        parts.append(section.title)
    parts += [_fill(item, bullet="- ") for item in section.items]
    parts += [_fill(line) for line in section.lines]
    return "\n".join(line.rstrip() for part in parts for line in part.splitlines())


def _fill(line: str, width: int = WIDTH, bullet: str = "") -> str:
    """The line wrapped between words; a word that is too long stays whole."""
    indent = " " * len(bullet)
    return textwrap.fill(
        line,
        width,
        initial_indent=bullet,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _table(section: Section, headers: Sequence[str], rows: Sequence[Sequence[str]], form: str) -> str:
    from tabulate import tabulate  # 0.1 s, which JSON need not wait for

    align = ["right" if i in section.right else "left" for i in range(len(headers))]
    if form == "plain":  # as a row of its own, a header adds no padding to its column
        return tabulate([headers, *rows], tablefmt=form, disable_numparse=True, colalign=align)
    return tabulate(rows, headers, tablefmt=form, disable_numparse=True, colalign=align)


def _squeezed(section: Section, headers: tuple[str, ...]) -> list[tuple[str, ...]]:
    """The rows with flexible columns narrowed, the widest first, until the table is WIDTH wide."""
    widths = [max(len(row[i]) for row in (headers, *section.rows)) for i in range(len(headers))]
    excess = sum(widths) + 2 * (len(widths) - 1) - WIDTH
    floors = {i: max(NARROWEST, len(headers[i])) for i in (*section.flexible, *section.wrapped)}
    while excess > 0:
        column = max((i for i, floor in floors.items() if widths[i] > floor), key=widths.__getitem__, default=None)
        if column is None:
            break
        widths[column] -= 1
        excess -= 1
    return [
        tuple(
            clip(cell, widths[i]) if i in section.flexible
            else _fill(cell, widths[i]) if i in section.wrapped
            else cell
            for i, cell in enumerate(row)
        )
        for row in section.rows
    ]  # fmt: skip


def clip(cell: str, width: int) -> str:
    """The cell with its middle cut out, `model.la...up_proj`, where it is longer than `width`."""
    if len(cell) <= width:
        return cell
    tail = (width - 3) * 2 // 3
    return f"{cell[: width - 3 - tail]}...{cell[len(cell) - tail :]}"


def _markdown(section: Section) -> str:
    parts = [f"## {section.title}"] if section.title else []
    if section.rows:
        headers = (section.title, *section.headers)
        rows = [tuple(cell.replace("|", "\\|") for cell in row) for row in section.rows]
        parts.append(_table(section, headers, rows, "github"))
    if section.items:
        parts.append("\n".join(f"- {item}" for item in section.items))
    parts += section.lines
    return "\n\n".join(parts)
