"""When what ran where: spans of time on the streams of each rank."""

from __future__ import annotations

from dataclasses import dataclass

COMPUTE = "compute"


@dataclass(frozen=True, slots=True)
class Span:
    """One piece of work on one stream of one rank, in seconds from the start of the step.

    kind         F, B, W, BW (forward, backward towards the input, towards the weights, both), head, tail, send, or the
                 name of a collective
    micro_batch  -1 where the work belongs to none; chunk too
    """

    rank: int
    stream: str
    kind: str
    micro_batch: int
    chunk: int
    start: float
    end: float

    @property
    def seconds(self) -> float:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Timeline:
    """The spans of a step. Those of one stream of one rank do not overlap. `note`: what they leave out."""

    ranks: int
    spans: tuple[Span, ...]
    note: str = ""

    @property
    def seconds(self) -> float:
        """When the last span ends."""
        return max((span.end for span in self.spans), default=0.0)

    def busy(self, stream: str = COMPUTE) -> tuple[float, ...]:
        """Seconds that each rank's stream works."""
        total = [0.0] * self.ranks
        for span in self.spans:
            if span.stream == stream:
                total[span.rank] += span.seconds
        return tuple(total)
