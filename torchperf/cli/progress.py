"""Bars on stderr while something takes long, where that is a terminal; elsewhere nothing is shown."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

from torchperf.graph.progress import heard_by

if TYPE_CHECKING:
    from tqdm import tqdm


@contextmanager
def counted(unit: str) -> Iterator[Callable[[int, int], None]]:
    """A bar over a known number of steps: call what it gives with (done, of all)."""
    if not sys.stderr.isatty():
        yield lambda done, of: None
        return
    with heard_by(None), _bar(unit) as bar:

        def tell(done: int, of: int) -> None:
            bar.total = of
            bar.update(done - bar.n)

        yield tell


@contextmanager
def captures() -> Iterator[None]:
    """A bar from the first recording of a model on, a step a recording; none where a cache or a file answers."""
    if not sys.stderr.isatty():
        yield
        return
    bars: list[tqdm[NoReturn]] = []

    def hear(what: str) -> None:
        if not bars:
            bars.append(_bar("recordings"))
        bars[0].set_description_str(what, refresh=False)
        bars[0].update()

    try:
        with heard_by(hear):
            yield
    finally:
        for bar in bars:
            bar.close()


def _bar(unit: str) -> tqdm[NoReturn]:
    from tqdm import tqdm  # 0.1 s, which only a person at a terminal waits for

    bar: tqdm[NoReturn] = tqdm(unit=f" {unit}", file=sys.stderr, leave=False, dynamic_ncols=True)
    return bar
