"""What an estimate of inference takes for granted, and what its words mean."""

from __future__ import annotations

from .graph.graph import Facts
from .graph.inference import InferencePlan, Request
from .graph.system import Accelerator
from .inference_planner import InferencePlanner

DEFINITIONS = (
    ("TTFT", "time to first token: from arrival to the first output token, waiting and prefill included"),
    ("TPOT", "time per output token after the first: (latency - TTFT) / (output tokens - 1), mean of a request"),
    ("ITL", "inter-token latency: the gap between two tokens; its mean is TPOT, its worst is told"),
    ("latency", "from arrival to the last output token"),
    ("tokens/s/GPU", "output tokens of all requests, over the time and the GPUs; tokens/s/user is 1 / TPOT"),
)


def assumptions(
    planner: InferencePlanner, facts: Facts, request: Request, continuous: bool, disaggregated: bool
) -> tuple[str, ...]:
    """Everything assumed of model, plan, runtime and requests."""
    return (
        *facts.assumptions,
        *_requests(request, continuous, disaggregated, planner.plan),
        *_plan(planner.plan, facts),
        *_runtime(planner, continuous),
        *_borrowed(planner.system.accelerator),
    )


def _requests(request: Request, continuous: bool, disaggregated: bool, plan: InferencePlan) -> list[str]:
    found = []
    if request.speculative:
        found.append(
            f"each of {request.speculative} drafts is accepted with probability {request.acceptance:g}, independently: "
            f"{request.tokens_per_step:.2f} tokens a step [leviathan2023]; the time of making drafts is not counted"
        )
    if request.known:
        found.append(f"{request.known:,} tokens of each input are cached, by blocks that nobody else's cache shares")
    if continuous:
        found.append("requests are alike, and end at their output length; steady state, nothing is preempted")
        if plan.pp > 1:
            found.append("with stages, a piece of a prompt delays a round of decodes by its mean time on a stage")
    if disaggregated:
        found.append("engines for prompts and for tokens are alike; a prompt's cache moves at once, rank to rank")
    return found


def _plan(plan: InferencePlan, facts: Facts) -> list[str]:
    found = []
    if plan.tp > 1:
        found.append(f"tp {plan.tp} by the plan inferred from the graph")
    if plan.tp > 1 and any(e.heads % plan.tp and e.kind == "kv" for e in facts.cache):
        found.append(f"fewer key heads than tp {plan.tp}: ranks keep copies of them")
    if plan.tp > 1 and any(e.kind == "latent" for e in facts.cache):
        found.append(f"every one of tp {plan.tp} ranks keeps the whole latent cache")
    if plan.ep > 1:
        found.append("tokens are spread evenly over the ranks of experts")
    if any("expert" in p.names[0] for p in facts.parameters):
        found.append("each token picks its experts independently of the others, all alike")
    return found


def _runtime(planner: InferencePlanner, continuous: bool) -> list[str]:
    runtime, serving = planner.runtime, planner.serving
    fit, error = serving.constants, serving.constants.median_error
    found = [
        f"`{runtime.name}` adds {1e6 * serving.layer:.0f} us a layer and {1e3 * serving.step:.2f} ms a pass "
        f"({fit.basis}, median error {100 * error:.0f} %: {fit.rows})"
    ]
    if serving.all_reduce_factor != 1 and planner.plan.tp > 1:
        found.append(f"latency of an all_reduce is {serving.all_reduce_factor:g} times that of `{serving.all_reduce}`")
    if serving.sequence:
        found.append(f"`{runtime.name}` adds {1e6 * serving.sequence:.1f} us a sequence and pass")
    if continuous and serving.request is None:
        found.append(f"time of a request outside of `{runtime.name}` (sent, tokenised, queued) is not counted: no rows")
    elif continuous:
        found.append(f"a request spends {1e3 * (serving.request or 0.0):.0f} ms outside of `{runtime.name}`'s passes")
    if serving.cuda_graphs:
        found.append("decode steps are replayed CUDA graphs: no launch of the host is waited for")
    if planner.precision.weights in ("int8", "int4", "mxfp4", "nvfp4"):
        found.append(
            "weight-only products pay no more latency than the device's 16-bit ones: the floor of 8 to 9 us of the "
            "measured rows is their clock's, one product a launch"
        )
    return found


def _borrowed(device: Accelerator) -> list[str]:
    borrowed = sorted({fit.name.split(".")[0] for fit in device.fits if fit.basis == "assumed"})
    if not borrowed:
        return []
    names = ", ".join(f"`{name}`" for name in device.fits_from) or "its family"
    return [f"constants of {', '.join(borrowed)} kernels without rows of `{device.name}` are those of {names}"]
