"""One price, or a curve of prices -> text and JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tabulate import tabulate

from ..graph.price import Price


def kernel_table(title: str, price: Price) -> str:
    """The price and its terms, each with formula and sources."""
    rows = [[t.name, f"{t.seconds * 1e6:,.2f}", t.formula, ", ".join(t.sources)] for t in price.terms]
    table = tabulate(rows, headers=["term", "us", "formula", "sources"], tablefmt="plain", disable_numparse=True,
                     colalign=("left", "right", "left", "left")) if rows else ""  # fmt: skip
    return f"{title}\n{price.seconds * 1e6:,.2f} us, bound by {price.bound}\n\n{table}\n"


def sweep_table(title: str, found: Sequence[tuple[int, Price]]) -> str:
    """A line a size."""
    rows = [[f"{size:,}", f"{p.seconds * 1e6:,.2f}", p.bound] for size, p in found]
    head = ["size", "us", "bound by"]
    table = tabulate(rows, headers=head, tablefmt="plain", disable_numparse=True, colalign=("right", "right", "left"))
    return f"{title.format('size')}\n\n{table}\n"


def kernel_dict(title: str, found: Sequence[tuple[int, Price]]) -> dict[str, Any]:
    """Sizes with time, bound and terms."""
    return {
        "kernel": title.format("size"),
        "prices": [
            {
                "size": size,
                "time_s": p.seconds,
                "bound": p.bound,
                "terms": [
                    {"name": t.name, "time_s": t.seconds, "formula": t.formula, "sources": list(t.sources)}
                    for t in p.terms
                ],
            }
            for size, p in found
        ],
    }
