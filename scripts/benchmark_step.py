"""What pricing a plan costs once the graph is there.

    python scripts/benchmark_step.py

GPT-3 175B under tp 8, pp 8, dp 8, interleaved: cold (nothing known), and again with another number of replicas, when
local program and prices are known. The same on 256 and on 1,536 devices: the cost does not grow.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from torchperf import hardware, pipeline
from torchperf.graph.plan import Plan
from torchperf.local_program import How
from torchperf.schedule.pipeline_time import finish
from torchperf.step import Planner

RUNS = 7


def best(run: Callable[[], object]) -> float:
    """Seconds of the fastest of a few runs."""
    found = []
    for _ in range(RUNS):
        start = time.perf_counter()
        run()
        found.append(time.perf_counter() - start)
    return min(found)


def planner_for(model: str, seq: int) -> Callable[[], Planner]:
    """A maker of planners that know nothing yet of the model, whose graph is bound."""
    graph = pipeline.bound_graph(model, "train", 1, seq)
    system, runtime = hardware.load_system("dgx-a100-80gb"), hardware.load_runtime("megatron-2022")
    how = How("fp16-mixed")

    def make() -> Planner:
        finish.cache_clear()
        return Planner(lambda _: graph, seq, system, runtime, how)

    return make


def main() -> None:
    fresh = planner_for("gpt3-175b", 2048)
    plan = Plan(tp=8, pp=8, virtual_stages=3, dp=8, sequence_parallel=True, recompute="selective", global_batch=512)
    asked = plan.resolved()
    print(f"gpt3-175b tp 8 pp 8 dp 8, interleaved: cold {1e3 * best(lambda: fresh().step(asked)):.1f} ms (bar 30)")
    warm = fresh()
    warm.step(asked)
    others = iter(range(9, 9 + RUNS))

    def again() -> None:
        dp = next(others)
        warm.step(Plan(**{**_fields(plan), "dp": dp, "global_batch": 64 * dp}).resolved())

    print(f"  another number of replicas, tp, sp and micro-batch seen: {1e3 * best(again):.1f} ms (bar 2)")
    fresh = planner_for("gpt3-175b", 2048)
    for dp in (1, 6):
        large = Plan(tp=8, pp=32, virtual_stages=3, dp=dp, sequence_parallel=True, global_batch=512 * dp).resolved()
        print(f"gpt3-175b tp 8 pp 32 on {large.num_gpus} devices: {1e3 * best(lambda p=large: fresh().step(p)):.1f} ms")


def _fields(plan: Plan) -> dict[str, object]:
    return {name: getattr(plan, name) for name in Plan.__dataclass_fields__}


if __name__ == "__main__":
    main()
