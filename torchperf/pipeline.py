"""One estimate, read top to bottom."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from . import annotate, hardware
from .frontend import load
from .fuse import fuse
from .graph.errors import TorchperfError
from .graph.estimate import Estimate, Flops, Memory, Share, Unpriced
from .graph.graph import Capture, Graph
from .graph.op import Op
from .graph.price import Price
from .graph.system import Runtime, System
from .graph.work import Work
from .price import Pricer
from .rewrite import attention, optimizer, precision, recompute
from .schedule import memory, timeline
from .utilisation import conventions

TIGHT = 0.05
Works = tuple[tuple[Work, ...], ...]


def estimate(
    model: str | Capture, *, gpu: str, num_gpus: int = 1, mode: str = "train", seq_len: int | None = None,
    micro_batch: int | None = None, precision: str = "bf16-mixed", optimizer: str = "adamw",
    recompute: str = "none", runtime: str = "eager", attention: str = "auto", strict: bool = False,
    refresh: bool = False,
) -> Estimate:  # fmt: skip
    """What one step of `model` costs on one device of `gpu`.

    model      a path, bundled name, hub id or saved graph as on the command line, or what `torchperf.capture` gave
    gpu        an accelerator of the hardware database, or the path of a TOML file
    mode       "train" (forward, backward, optimizer) or "forward"
    sizes      `micro_batch` samples of `seq_len` tokens; None takes the model's default
    Raises TorchperfError. `strict` refuses operators without a rule.
    """
    device = hardware.load_accelerator(gpu)
    runs_on = hardware.load_runtime(runtime)
    graph = bound_graph(model, mode, micro_batch, seq_len, refresh)
    program = lower(graph, precision, optimizer, recompute, attention, runs_on)
    works = annotated(program)
    unpriced = _unpriced(program, works)
    if strict and unpriced:
        raise TorchperfError(
            f"{len(unpriced)} operators have no rule",
            facts=[(u.op, f"{u.calls} calls, {u.share_of_bytes:.2%} of bytes") for u in unpriced],
            hint="leave out `--strict` to price their bytes alone, or add a rule in torchperf/annotate",
        )
    system = hardware.system_for(device, num_gpus)
    return _answer(graph, program, works, unpriced, system, runs_on, num_gpus, precision, optimizer, recompute)


def bound_graph(
    model: str | Capture, mode: str, micro_batch: int | None, seq_len: int | None, refresh: bool = False
) -> Graph:
    """The model's recorded program at the sizes asked for."""
    sizes = {name: size for name, size in (("batch", micro_batch), ("seq", seq_len)) if size is not None}
    for name, flag in (("batch", "--micro-batch"), ("seq", "--seq-len")):
        if sizes.get(name, 1) < 1:
            raise TorchperfError(f"`{flag}` is {sizes[name]}: it must be at least 1")
    if isinstance(model, Capture):
        if model.facts.mode != mode:
            raise TorchperfError(f"the capture is of mode `{model.facts.mode}`", hint=f"capture it with mode `{mode}`")
        return model.bind(**sizes)
    capture, graph = load.load(model, mode, sizes, refresh)
    return graph.bind(**{**dict(capture.facts.sizes), **sizes})


def lower(
    graph: Graph, precision_name: str, optimizer_name: str | None, recompute_how: str, attention_form: str, runtime: Runtime
) -> Graph:
    """The program that the runtime runs: precision, form of attention, recompute, optimizer, kernels."""
    to = precision.precision(precision_name)
    program = precision.apply(graph, to)
    program = attention.apply(program, attention.form(attention_form, runtime.attention))
    program = recompute.apply(program, recompute_how)
    if graph.facts.mode == "train" and optimizer_name is not None:
        program = optimizer.append(program, optimizer_name, to)
    return fuse(program, annotated(program)) if runtime.fused else program


def annotated(graph: Graph) -> Works:
    """The work of every stored op, block by block."""
    return tuple(tuple(annotate.work(op) for op in block.ops) for block in graph.blocks)


def _unpriced(graph: Graph, works: Works) -> tuple[Unpriced, ...]:
    total, found = 0, dict[str, list[int]]()
    for count, block, row in zip(graph.counts, graph.blocks, works, strict=True):
        for op, work in zip(block.ops, row, strict=True):
            total += count * work.nbytes
            if not work.known:
                entry = found.setdefault(op.name, [0, 0])
                entry[0] += count
                entry[1] += count * work.nbytes
    return tuple(Unpriced(op, calls, nbytes, nbytes / max(total, 1)) for op, (calls, nbytes) in found.items())


def flops_of(graph: Graph, works: Works, of: Callable[[Work], int]) -> Flops:
    """FLOPs of the matrix engine by phase."""
    sums = dict.fromkeys(("forward", "backward", "recompute", "optimizer"), 0)
    for count, block, row in zip(graph.counts, graph.blocks, works, strict=True):
        sums[block.phase] += count * sum(of(work) for work in row if work.engine == "matrix")
    return Flops(sums["forward"], sums["backward"], sums["recompute"])


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


def _shares(
    program: Graph, works: Works, prices: Sequence[Sequence[Price]], key: Callable[[Op, Work, Price], str]
) -> tuple[Share, ...]:
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


def _top(program: Graph, works: Works, prices: Sequence[Sequence[Price]], number: int = 10) -> tuple[Share, ...]:
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
    graph: Graph, program: Graph, works: Works, device_usable: float, runtime: Runtime, to: precision.Precision,
    optimizer_name: str,
) -> Memory:  # fmt: skip
    from .graph.dtype import bits, nbytes

    parameters = sum(nbytes(p.numel, p.dtype) for p in program.facts.parameters)
    buffers = sum(nbytes(b.numel, b.dtype) for b in program.facts.buffers)
    train = graph.facts.mode == "train"
    gradients = sum(nbytes(p.numel, p.dtype) for p in program.facts.parameters if p.trainable) if train else 0
    rows: list[tuple[str, float]] = [(f"weights {to.compute}", bits(to.compute) / 8)]
    kept = optimizer.state(program, optimizer_name, to) if train else None
    if kept:
        rows += [(f"gradients {to.compute}", bits(to.compute) / 8), *kept.rows]
    top = memory.peak(program, works)
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


def _answer(
    graph: Graph, program: Graph, works: Works, unpriced: tuple[Unpriced, ...], system: System, runtime: Runtime,
    num_gpus: int, precision_name: str, optimizer_name: str, recompute_how: str,
) -> Estimate:  # fmt: skip
    device, facts = system.accelerator, graph.facts
    to = precision.precision(precision_name)
    peak_flops = device.peak_flops_per_s(device.matmul_engine(to.compute), to.compute)
    pricer = Pricer(system, runtime)
    prices = [
        [pricer(op, work) for op, work in zip(block.ops, row, strict=True)]
        for block, row in zip(program.blocks, works, strict=True)
    ]
    durations = [[p.seconds for p in row] for row in prices]
    order = [segment.block for segment in program.segments]
    time = timeline.step_time(durations, order, runtime.launch.value)
    used = _memory(graph, program, works, device.memory.usable.value, runtime, to, optimizer_name)
    flops = flops_of(program, works, lambda w: w.flops)
    noncausal = flops_of(program, works, lambda w: w.flops_noncausal)
    batch, seq = graph.size("batch") or 1, graph.size("seq") or 1
    tokens = batch * seq
    mfu, hfu = conventions(program, works, flops, noncausal, tokens, tokens / time.step if time.step else 0.0, peak_flops)
    phases: dict[str, float] = {}
    for count, block, row in zip(program.counts, program.blocks, durations, strict=True):
        phases[block.phase] = phases.get(block.phase, 0.0) + count * sum(row)
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
        roofline_time_s=_roofline(program, works, system),
        tokens_per_step=tokens,
        tokens_per_s=tokens / time.step if time.step else 0.0,
        samples_per_s=batch / time.step if time.step else 0.0,
        flops=flops,
        flops_noncausal=noncausal,
        peak_flops_per_s=peak_flops,
        mfu=mfu,
        hfu=hfu,
        by_kind=_shares(program, works, prices, lambda op, work, price: work.kind),
        by_module=_shares(program, works, prices, lambda op, work, price: short_module(op.module)),
        by_bound=_shares(program, works, prices, lambda op, work, price: price.bound),
        top_kernels=_top(program, works, prices),
        unpriced=unpriced,
        guesses=facts.guesses,
        assumptions=_assumptions(graph, num_gpus, used, time, recompute_how, program),
            sources=tuple(sorted({s for row in prices for p in row for t in p.terms for s in t.sources})),
    )


def _roofline(program: Graph, works: Works, system: System) -> float:
    """Seconds at full peaks, without floors: no run of this program is faster."""
    device, total = system.accelerator, 0.0
    for count, row in zip(program.counts, works, strict=True):
        for work in row:
            compute = 0.0
            if work.engine == "matrix":
                engine = device.matmul_engine(work.dtype)
                compute = work.flops_executed / device.peak_flops_per_s(engine, work.dtype)
            total += count * max(compute, work.nbytes / device.memory.bandwidth.value)
    return total


def _assumptions(
    graph: Graph, num_gpus: int, used: Memory, time: timeline.StepTime, recompute_how: str, program: Graph
) -> tuple[str, ...]:
    found = list(graph.facts.assumptions)
    if any(op.name.startswith("torchperf.attention") for op, _ in graph.ops()):
        found.append("attention masks hold no padding: causal, window and chunk are taken from the model's own arguments")
    if any("_grouped_mm" in op.name for op, _ in graph.ops()):
        found.append("tokens are spread evenly over the experts")
    if graph.facts.mode == "train":
        found.append("gradients are held for the whole step, the optimizer is one pass over its state")
    if num_gpus > 1:
        found.append(f"{num_gpus} replicas, each as estimated; communication between them is not priced")
    if any(block.phase == "recompute" for block in graph.blocks):
        found.append("the model checkpoints itself: what it repeats is counted as recompute")
    elif recompute_how == "full" and not any(block.phase == "recompute" for block in program.blocks):
        found.append("`--recompute full` has no repeated layer to work on")
    if time.step > 1.2 * time.device:
        found.append("the host cannot issue kernels as fast as the device runs them: the step is launch bound")
    return tuple(found)
