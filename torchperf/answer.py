"""Priced program -> Estimate: verdict, memory table, shares of time, what was assumed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .annotate import works as annotated
from .graph.dtype import bits, nbytes
from .graph.estimate import Estimate, Memory, Share, Unpriced
from .graph.graph import Graph
from .graph.op import Op
from .graph.price import Price, Prices
from .graph.system import Accelerator, Runtime
from .graph.work import Work, Works
from .price.roofline import roofline
from .rewrite import optimizer, precision
from .schedule.memory import Peak
from .schedule.timeline import StepTime
from .utilisation import conventions, flops_of

TIGHT = 0.05


def unpriced_ops(graph: Graph, works: Works) -> tuple[Unpriced, ...]:
    """Operators that no rule covers, with their calls and bytes."""
    total, found = 0, dict[str, list[int]]()
    for count, block, row in zip(graph.counts, graph.blocks, works, strict=True):
        for op, work in zip(block.ops, row, strict=True):
            total += count * work.nbytes
            if not work.known:
                entry = found.setdefault(op.name, [0, 0])
                entry[0] += count
                entry[1] += count * work.nbytes
    return tuple(Unpriced(op, calls, nbytes, nbytes / max(total, 1)) for op, (calls, nbytes) in found.items())


@dataclass(slots=True)
class _Tally:
    """Sums over the program's kernels under one key."""

    seconds: float = 0.0
    calls: int = 0
    flops: int = 0
    nbytes: int = 0
    bounds: dict[str, float] | None = None

    def add(self, count: int, work: Work, price: Price) -> None:
        self.seconds += count * price.seconds
        self.calls += count
        self.flops += count * work.flops
        self.nbytes += count * work.nbytes
        self.bounds = self.bounds or {}
        self.bounds[price.bound] = self.bounds.get(price.bound, 0.0) + count * price.seconds


def _shares(program: Graph, works: Works, prices: Prices, key: Callable[[Op, Work, Price], str]) -> tuple[Share, ...]:
    tallies: dict[str, _Tally] = {}
    for count, block, row, costs in zip(program.counts, program.blocks, works, prices, strict=True):
        for op, work, price in zip(block.ops, row, costs, strict=True):
            if price.seconds > 0.0:
                tallies.setdefault(key(op, work, price), _Tally()).add(count, work, price)
    ranked = sorted(tallies.items(), key=lambda item: -item[1].seconds)
    return tuple(
        Share(name, t.seconds, t.calls, t.flops, t.nbytes, max(t.bounds or {"": 0.0}, key=(t.bounds or {}).__getitem__))
        for name, t in ranked
    )


def short_module(path: str) -> str:
    """A module's path cut below the layer: `model.layers.*.mlp.up_proj` -> `model.layers.*.mlp`."""
    parts = path.split(".")
    cut = parts.index("*") + 2 if "*" in parts else 2
    return ".".join(parts[:cut]) or "(model)"


def _kernel_name(op: Op) -> str:
    """The op's name; of a fused kernel the first ops in it."""
    if not op.parts:
        return op.name.removesuffix(".default")
    names = list(dict.fromkeys(part.name.split(".")[1] for part in op.parts))
    return f"fused({', '.join(names[:4])}{', ...' if len(names) > 4 else ''})"


def _top(program: Graph, works: Works, prices: Prices, number: int = 10) -> tuple[Share, ...]:
    rows = []
    for count, block, row, costs in zip(program.counts, program.blocks, works, prices, strict=True):
        for op, work, price in zip(block.ops, row, costs, strict=True):
            rows.append((count * price.seconds, count, op, work, price))
    rows.sort(key=lambda r: -r[0])
    return tuple(
        Share(
            f"{_kernel_name(op)} {op.module}".strip(), seconds, count, count * work.flops,
            count * work.nbytes, price.bound, op.phase, " ".join(f"{k}={v}" for k, v in work.dims),
        )
        for seconds, count, op, work, price in rows[:number]
        if seconds > 0
    )  # fmt: skip


def _memory(
    program: Graph, top: Peak, device_usable: float, runtime: Runtime, to: precision.Precision, optimizer_name: str
) -> Memory:
    parameters = sum(nbytes(p.numel, p.dtype) for p in program.facts.parameters)
    buffers = sum(nbytes(b.numel, b.dtype) for b in program.facts.buffers)
    train = program.facts.mode == "train"
    gradients = sum(nbytes(p.numel, p.dtype) for p in program.facts.parameters if p.trained) if train else 0
    rows: list[tuple[str, float]] = [(f"weights {to.compute}", bits(to.compute) / 8)]
    kept = optimizer.state(program, optimizer_name, to) if train else None
    if kept:
        rows += [(f"gradients {to.compute}", bits(to.compute) / 8), *kept.rows]
    fixed = parameters + buffers + gradients + (kept.nbytes if kept else 0)
    peak = fixed + top.nbytes
    reserve = round(runtime.reserve.value + runtime.allocator_fraction.value * peak)
    return Memory(
        parameters=parameters,
        buffers=buffers,
        gradients=gradients,
        optimizer=kept.nbytes if kept else 0,
        activations=top.activations,
        logits_loss=top.logits_loss,
        temporary=top.temporary,
        reserve=reserve,
        peak=peak,
        usable=int(device_usable),
        peak_at=f"{top.module or '(model)'}, {top.phase}" if top.phase else "",
        bytes_per_parameter=tuple(rows),
    )


def verdict(margin: float) -> str:
    """`fits`; `tight` under 5 % of usable capacity; `does not fit`."""
    return "does not fit" if margin < 0 else "tight" if margin < TIGHT else "fits"


@dataclass(frozen=True, slots=True)
class Setting:
    """How a step was run: what the user chose, resolved."""

    device: Accelerator
    runtime: Runtime
    num_gpus: int
    precision: str
    optimizer: str
    recompute: str
    tp: int = 1
    sequence_parallel: bool = False
    power_cap: float | None = None


def answer(
    graph: Graph, whole: Graph, program: Graph, works: Works, prices: Prices, time: StepTime, top: Peak, core: int,
    setting: Setting,
) -> Estimate:  # fmt: skip
    """The Estimate of a captured `graph` that ran as `program`.

    whole   the program before it was split over devices: MFU counts its FLOPs
    core    attention's non-causal FLOPs of the whole
    """
    facts, device, runtime, num_gpus = graph.facts, setting.device, setting.runtime, setting.num_gpus
    precision_name, optimizer_name, recompute_how = setting.precision, setting.optimizer, setting.recompute
    to = precision.precision(precision_name)
    peak_flops = device.peak_flops_per_s(device.matmul_engine(to.compute), to.compute)
    used = _memory(program, top, device.memory.usable.value, runtime, to, optimizer_name)
    flops = flops_of(program, works, lambda w: w.flops)
    noncausal = flops_of(program, works, lambda w: w.flops_noncausal)
    batch, seq = graph.size("batch") or 1, graph.size("seq") or 1
    tokens = batch * seq
    rate = tokens / (time.step * setting.tp) if time.step else 0.0
    counted = flops if whole is program else flops_of(whole, annotated(whole), lambda w: w.flops)
    mfu, hfu = conventions(whole, counted, core, tokens, rate, peak_flops)
    phases: dict[str, float] = {}
    for count, block, costs in zip(program.counts, program.blocks, prices, strict=True):
        phases[block.phase] = phases.get(block.phase, 0.0) + count * sum(p.seconds for p in costs)
    return Estimate(
        model=facts.model,
        mode=facts.mode,
        gpu=device.name,
        num_gpus=num_gpus,
        sizes=graph.bound or (),
        precision=precision_name,
        optimizer=optimizer_name if facts.mode == "train" else "none",
        recompute=recompute_how,
        runtime=runtime.name,
        parameters=sum(p.numel for p in facts.parameters),
        trainable_parameters=sum(p.numel for p in facts.parameters if p.trainable),
        verdict=verdict(used.margin),
        memory=used,
        step_time_s=time.step,
        device_time_s=time.device,
        host_time_s=time.host,
        phase_time_s=tuple(phases.items()),
        roofline_time_s=_roofline(program, works, device),
        tokens_per_step=tokens,
        tokens_per_s=rate,
        samples_per_s=rate / seq,
        flops=flops,
        flops_noncausal=noncausal,
        peak_flops_per_s=peak_flops,
        mfu=mfu,
        hfu=hfu,
        by_kind=_shares(program, works, prices, lambda op, work, price: work.kind),
        by_module=_shares(program, works, prices, lambda op, work, price: short_module(op.module)),
        by_bound=_shares(program, works, prices, lambda op, work, price: price.bound),
        top_kernels=_top(program, works, prices),
        unpriced=unpriced_ops(program, works),
        guesses=facts.guesses,
        assumptions=(
            *_assumptions(graph, num_gpus, setting.tp, used, time, recompute_how, program),
            *_borrowed(device),
            *_capped(setting),
        ),
        sources=tuple(sorted({s for row in prices for p in row for t in p.terms for s in t.sources})),
        tp=setting.tp,
        sequence_parallel=setting.sequence_parallel,
    )


def _roofline(program: Graph, works: Works, device: Accelerator) -> float:
    """Seconds at full peaks, without floors: no run of this program is faster."""
    return sum(
        count * sum(roofline(work, device) for work in row) for count, row in zip(program.counts, works, strict=True)
    )


def _capped(setting: Setting) -> tuple[str, ...]:
    if setting.power_cap is None:
        return ()
    text = f"capped at {setting.power_cap:g} W: peaks and clock as the cube root of power, memory as it is"
    return (text,)


def _borrowed(device: Accelerator) -> tuple[str, ...]:
    """What is told where the kernels of a device have no measured rows of their own."""
    borrowed = sorted({fit.name.split(".")[0] for fit in device.fits if fit.basis == "assumed"})
    if not borrowed:
        return ()
    names = ", ".join(f"`{name}`" for name in device.fits_from) or "its family"
    return (f"constants of {', '.join(borrowed)} kernels without rows of `{device.name}` are those of {names}",)


def _assumptions(
    graph: Graph, num_gpus: int, tp: int, used: Memory, time: StepTime, recompute_how: str, program: Graph
) -> tuple[str, ...]:
    found = list(graph.facts.assumptions)
    if any(op.name.startswith("torchperf.attention") for op, _ in graph.ops()):
        found.append("attention masks hold no padding: causal, window and chunk are the model's own arguments")
    if any(op.name == "torchperf.attention.default" and op.find("bias") is not None for op, _ in program.ops()):
        found.append(
            "attention with a mask or bias that is a tensor computes every pair: what the tensor masks is unknown"
        )
    if any("_grouped_mm" in op.name for op, _ in graph.ops()):
        found.append("tokens are spread evenly over the experts")
    if graph.facts.mode == "train":
        found.append("gradients are held for the whole step, the optimizer is one pass over its state")
    replicas = num_gpus // tp
    if replicas > 1:
        found.append(f"{replicas} replicas, each as estimated; communication between them is not priced")
    if tp > 1:
        found.append(f"tp {tp} by the plan inferred from the graph; its collectives overlap with nothing")
    if any(block.phase == "recompute" for block in graph.blocks):
        found.append("the model checkpoints itself: what it repeats is counted as recompute")
    elif (
        graph.facts.mode == "train"
        and recompute_how == "full"
        and not any(block.phase == "recompute" for block in program.blocks)
    ):
        found.append("`--recompute full` has no repeated layer to work on")
    if time.step > 1.2 * time.device:
        found.append("the host cannot issue kernels as fast as the device runs them: the step is launch bound")
    return tuple(found)
