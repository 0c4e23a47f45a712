"""Who hears how far a long piece of work is; nobody, unless someone listens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Listener = Callable[[str], None]
_listener: ContextVar[Listener | None] = ContextVar("torchperf_progress", default=None)


@contextmanager
def heard_by(listener: Listener | None) -> Iterator[None]:
    """Inside, `listener` is called with what was just done; None for nobody."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def done(what: str) -> None:
    """One step of the work is done."""
    listener = _listener.get()
    if listener is not None:
        listener(what)
