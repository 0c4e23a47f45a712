"""What an estimate takes for granted, in words."""

from __future__ import annotations

from .graph.graph import Graph
from .graph.runtime import Runtime
from .graph.system import Accelerator, System
from .partition.why import PAD, Indivisible
from .step import Step


def assumptions(
    graph: Graph, step: Step, system: System, runtime: Runtime, power_cap: float | None, launches: float
) -> tuple[str, ...]:
    """Everything that was assumed of model, plan, runtime and device."""
    return (
        *graph.facts.assumptions,
        *_model(graph, step),
        *_plan(step, runtime),
        *_time(step, runtime, launches),
        *_borrowed(system.accelerator),
        *_capped(power_cap),
    )


def _model(graph: Graph, step: Step) -> list[str]:
    found = []
    program = step.local.graph
    if any(op.name.startswith("torchperf.attention") for op, _ in graph.ops()):
        found.append("attention masks hold no padding: causal, window and chunk are the model's own arguments")
    if any(op.name == "torchperf.attention.default" and op.find("bias") is not None for op, _ in program.ops()):
        found.append(
            "attention with a mask or bias that is a tensor computes every pair: what the tensor masks is unknown"
        )
    if any("_grouped_mm" in op.name for op, _ in graph.ops()) and step.plan.moe_imbalance == 1:
        found.append("tokens are spread evenly over the experts")
    if any(block.phase == "recompute" for block in graph.blocks):
        found.append("the model checkpoints itself: what it repeats is counted as recompute")
    elif (
        graph.facts.mode == "train"
        and step.plan.recompute.startswith("full")
        and not any(block.phase == "recompute" for block in program.blocks)
    ):
        found.append(f"`--recompute {step.plan.recompute}` has no repeated layer to work on")
    return found


def _plan(step: Step, runtime: Runtime) -> list[str]:
    plan, found = step.plan, []
    if step.local.graph.facts.mode == "train":
        found.append(f"gradients are held for the whole step; optimizer passes: {', '.join(runtime.training.passes)}")
    if plan.tp > 1 and not plan.tp_plan:
        found.append(f"tp {plan.tp} by the plan inferred from the graph")
    found += [_left_whole(one) for one in step.local.whole]
    beside = ", ".join(runtime.training.overlap) or "nothing"
    if plan.num_gpus > 1:
        found.append(f"`{runtime.name}` overlaps with compute: {beside}")
    if plan.pp > 1 and plan.zero_stage == 1 and runtime.training.pipeline_whole:
        found.append(
            f"`{runtime.name}` keeps weights gathered and gradients whole from the first to the last micro-batch of a "
            "pipeline: ZeRO 3 takes the memory of ZeRO 1"
        )
    if plan.pp > 1:
        sizes = [len(chunk.layers) for chunk in step.chunks]
        if len(set(sizes)) > 1 and not plan.pp_split:
            found.append(f"layers do not divide evenly over the stages: {', '.join(map(str, sizes))}")
    if plan.dp > 1 and plan.global_batch == plan.micro_batch * plan.dp * plan.pp:
        times = "1 micro-batch" if plan.micro_batches == 1 else f"{plan.micro_batches} micro-batches"
        found.append(f"a step is {times} a replica: set it with `--global-batch`")
    if plan.offload != "none":
        found.append(
            "offload: transfers over the host link hide behind nothing; the host's own arithmetic is not priced"
        )
    return found


def _left_whole(one: Indivisible) -> str:
    """What a parameter costs that the ranks do not divide, and which size they would."""
    size = f"as Megatron-LM pads to a multiple of {PAD} x tp, " if one.table else ""
    return (
        f"`{one.parameter}` is whole on each tp rank: {one.ranks} does not divide {one.size:,} {one.dim}; "
        f"{one.nbytes / 1e6:,.1f} MB of weights a rank above its share, gradients and states besides; "
        f"padded to {one.padded:,}, {size}it would be split; nothing is padded here"
    )


def _time(step: Step, runtime: Runtime, launches: float) -> list[str]:
    device = sum(count * price.seconds for count, _, _, price in step.rows)
    if step.plan.pp == 1 and step.seconds > 1.2 * device and launches * runtime.launch.value > device:
        return ["the host cannot issue kernels as fast as the device runs them: the step is launch bound"]
    return []


def _capped(power_cap: float | None) -> tuple[str, ...]:
    if power_cap is None:
        return ()
    return (f"capped at {power_cap:g} W: peaks and clock as the cube root of power, memory as it is",)


def _borrowed(device: Accelerator) -> tuple[str, ...]:
    """What is told where the kernels of a device have no measured rows of their own."""
    borrowed = sorted({fit.name.split(".")[0] for fit in device.fits if fit.basis == "assumed"})
    if not borrowed:
        return ()
    names = ", ".join(f"`{name}`" for name in device.fits_from) or "its family"
    return (f"constants of {', '.join(borrowed)} kernels without rows of `{device.name}` are those of {names}",)
