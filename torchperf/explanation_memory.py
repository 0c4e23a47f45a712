"""The memory of the most loaded rank -> lines: states by group of parameters, activations by module, the reserve."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from .answer import short_module
from .graph.dtype import bits, nbytes
from .graph.estimate import Memory
from .graph.explanation import Line, filled
from .graph.graph import Parameter
from .graph.runtime import Runtime
from .partition.replicas import groups
from .rewrite import optimizer
from .rewrite.precision import precision
from .schedule.memory import SAVED, Life, lives
from .step import Step, worst
from .step_ops import state_ranks

SHOWN = 8  # modules with a line of their own


def memory(m: Memory, step: Step) -> Line:
    """What the device shows as used: the allocated at the peak, row by row, and the reserve. Bytes."""
    rank = _rank(m, step)
    alive = _alive(step, rank)
    reserve, fraction = step.runtime.reserve.value, step.runtime.allocator_fraction.value
    flat = m.reserve - round(reserve + fraction * m.peak)
    rows = [
        *_states(m, step, rank),
        Line("buffers", m.buffers, "B"),
        Line("gradient buckets", m.buckets, "B", formula="gradients, again", note="buckets that are copies"),
        *(
            filled(title, getattr(m, part), "B", _by_module(alive.get(part, {})), "rounding")
            for title, part in (("activations", "activations"), ("logits and loss", "logits_loss"),
                                ("temporary", "temporary"), ("gathered parameters", "gathered"))
        ),
        Line(
            "framework reserve", m.reserve, "B",
            formula="reserve + allocator_fraction peak" + (" + flat" if flat else ""),
            inputs=(("reserve", reserve), ("allocator_fraction", fraction), ("peak", float(m.peak)),
                    *([("flat", float(flat))] if flat else [])),
            records=tuple(f"{step.runtime.name}: {key}" for key in _reserve_records(step.runtime)),
        ),
    ]  # fmt: skip
    usable = Line("usable", m.usable, "B", records=("memory.usable",), note="not in the sum")
    return Line("memory", m.device, "B", tuple(row for row in rows if row.value), note=m.peak_at, behind=(usable,))


def _reserve_records(runtime: Runtime) -> Iterable[str]:
    yield from ("reserve", "allocator_fraction")
    yield from (f"training.{key}" for key in ("step_copies", "step_buffer") if getattr(runtime.training, key))


def _rank(m: Memory, step: Step) -> int:
    """The pipeline rank that the table is of."""
    where = m.peak_at.partition(":")[0]
    return int(where.removeprefix("stage ")) if where.startswith("stage ") else 0


def _states(m: Memory, step: Step, rank: int) -> list[Line]:
    """Parameters, gradients and optimizer states: numbers of them, bytes of one, ranks that share them."""
    plan, to, training = step.plan, precision(step.how.precision), step.runtime.training
    train = step.local.graph.facts.mode == "train"
    masters = train and training.parameters == "shard" and plan.zero_stage == 3 and bool(to.master)
    parts: dict[str, list[Line]] = {"parameters": [], "gradients": [], "optimizer states": []}
    for experts in (False, True):
        own = [p for p in step.ranks[rank].parameters if (p.names[0] in step.local.experts) == experts]
        shard = groups(plan, experts).shard.ranks
        of = " of experts" if experts else ""
        parts["parameters"] += _shared(
            own, lambda p: 4 * p.numel if masters and p.trained else nbytes(p.numel, p.dtype), of,
            shard if plan.zero_stage == 3 else 1,
        )  # fmt: skip
        if not train:
            continue
        trained = [p for p in own if p.trained]
        parts["gradients"] += _shared(
            trained, lambda p: round(training.gradient_bytes(bits(p.dtype) / 8) * p.numel), of,
            shard if plan.zero_stage >= 2 else 1,
        )  # fmt: skip
        ranks, numel = state_ranks(plan, experts), sum(p.numel for p in trained)
        rows = [row for row in optimizer.state(own, step.how.optimizer, to).rows if row[1] and numel]
        parts["optimizer states"] += [
            _count(f"{name}{of}", numel * width, numel, width, ranks)
            for name, width in rows
            if not (masters and name.startswith("master"))
        ]
    host = "kept by the host" if plan.offload != "none" else "rounding"
    values = {"parameters": m.parameters, "gradients": m.gradients, "optimizer states": m.optimizer}
    return [filled(name, values[name], "B", tuple(lines), host) for name, lines in parts.items()]


def _shared(own: Iterable[Parameter], width: Callable[[Parameter], int], of: str, ranks: int) -> list[Line]:
    """A line for each width of an element."""
    kinds: dict[float, list[int]] = {}
    for p in own:
        size = width(p)
        kept = kinds.setdefault(size / p.numel if p.numel else bits(p.dtype) / 8, [0, 0])
        kept[0] += p.numel
        kept[1] += size
    return [
        _count(f"{8 * each:g}-bit elements{of}", nbytes, numel, each, ranks) for each, (numel, nbytes) in kinds.items()
    ]


def _count(name: str, size: float, numel: int, each: float, ranks: int) -> Line:
    inputs = (("elements", float(numel)), ("bytes", each), ("ranks", float(ranks)))
    return Line(name, size / ranks, "B", formula="elements bytes / ranks", inputs=inputs)


def _alive(step: Step, rank: int) -> dict[str, dict[str, list[int]]]:
    """What is alive at the peak of a rank: part -> module that made it -> (bytes, tensors)."""
    own = step.rank_of[rank]
    moment = worst(step, rank)
    costs = [step.costs[c] for c in own]
    found: dict[str, dict[str, list[int]]] = {}

    def add(life: Life, module: str, times: int) -> None:
        kept = found.setdefault(life.part, {}).setdefault(module, [0, 0])
        kept[0] += times * life.nbytes
        kept[1] += times

    for i, (cost, waiting) in enumerate(zip(costs, moment.waiting, strict=True)):
        outputs, at = set(cost.graph.facts.outputs), cost.peak.at
        for storage, life in lives(cost.graph, cost.works).items():
            segment, op = life.birth
            module = short_module(cost.graph.blocks[cost.graph.segments[segment].block].ops[op].module)
            if i == moment.running and life.birth <= at <= life.death:
                add(life, module, 1)
            if waiting and life.part in SAVED and storage not in outputs:
                add(life, module, waiting)
        if moment.delayed[i]:
            late = found.setdefault("activations", {}).setdefault("what weight gradients put off read", [0, 0])
            late[0] += moment.delayed[i] * cost.weight
            late[1] += moment.delayed[i]
    return found


def _by_module(modules: dict[str, list[int]]) -> tuple[Line, ...]:
    lines = [Line(name, size, "B", note=f"{number} tensors") for name, (size, number) in modules.items()]
    lines.sort(key=lambda line: -line.value)
    shown, rest = (lines, []) if len(lines) <= SHOWN + 1 else (lines[:SHOWN], lines[SHOWN:])
    more = [Line(f"{len(rest)} other modules", sum(line.value for line in rest), "B")] if rest else []
    return (*shown, *more)
