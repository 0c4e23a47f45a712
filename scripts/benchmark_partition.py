"""How long the split of a model takes: factors, plan, placement and one rank's program, forward and backward.

    python scripts/benchmark_partition.py

Llama-3.1 at batch 1 and 4096 tokens, 8-way tensor and sequence parallel, with the plan inferred and with a given one.
Processor time, the best of several runs. Exit code 1 where a bar is missed.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torchperf
from torchperf.graph.graph import Graph
from torchperf.partition.factors import propagate
from torchperf.partition.given import given
from torchperf.partition.infer import Inferred, infer
from torchperf.partition.local import local_program
from torchperf.partition.plan_file import plan_of
from torchperf.partition.prepare import Prepared, prepare

BARS = {"llama-3.1-8b": 0.060, "llama-3.1-405b": 0.080}  # seconds
RANKS, SEQ, RUNS = 8, 4096, 15
STEPS = ("propagate", "prepare", "plan and placement", "local program")


def split(graph: Graph, planned: Callable[[Prepared], Inferred]) -> tuple[float, ...]:
    """Seconds of each step."""
    times = [time.process_time()]
    factors = propagate(graph)
    times.append(time.process_time())
    prepared = prepare(factors)
    times.append(time.process_time())
    found = planned(prepared)
    times.append(time.process_time())
    local_program(found.placement)
    times.append(time.process_time())
    return tuple(b - a for a, b in itertools.pairwise(times))


def main() -> int:
    """A line a model and kind of plan; 1 where the inferred one is above its bar."""
    missed = False
    for model, bar in BARS.items():
        graph = torchperf.capture(model).bind(batch=1, seq=SEQ)
        plan = plan_of(graph, "hf")
        assert plan is not None
        kinds: dict[str, Callable[[Prepared], Inferred]] = {
            "inferred": lambda prepared: infer(prepared, RANKS, sequence=True),
            "given": lambda prepared, plan=plan: given(prepared, RANKS, plan, sequence=True),  # type: ignore[misc]
        }
        for kind, planned in kinds.items():
            best = min((split(graph, planned) for _ in range(RUNS)), key=sum)
            steps = ", ".join(f"{name} {1e3 * s:.1f}" for name, s in zip(STEPS, best, strict=True))
            told = f" (bar {1e3 * bar:.0f})" if kind == "inferred" else ""
            print(f"{model}, plan {kind}: {1e3 * sum(best):.1f} ms{told}: {steps}")
            missed = missed or (kind == "inferred" and sum(best) > bar)
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
