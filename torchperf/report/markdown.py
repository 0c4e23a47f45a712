"""An estimate as GitHub Markdown: the sections of the text report, with nothing cut."""

from __future__ import annotations

from torchperf.graph.estimate import Estimate

from . import estimate
from .section import markdown


def estimate_markdown(e: Estimate) -> str:
    """The report of an estimate as Markdown."""
    return markdown(estimate.sections(e, whole=True))
