"""The options of `estimate --mode inference`, and the command's way through that mode."""

from __future__ import annotations

from typing import Any

import click
from click.core import ParameterSource

from torchperf.graph.errors import TorchperfError

from . import output
from .failure import refuse
from .options import Command, count, positive, share

DEFAULT_RUNTIME = "vllm"
SHARED = frozenset(
    {"model", "gpu", "system", "num_gpus", "mode", "precision", "runtime", "tp", "pp", "pp_split", "ep", "power_cap",
     "refresh", "json_to", "markdown", "strict", "suggest",
     "explain_what", "debug"}
)  # fmt: skip


def _pair(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[str, str] | None:
    """`4:0.8` -> its two parts."""
    if value is None:
        return None
    left, colon, right = value.partition(":")
    if not colon or not left or not right:
        raise click.UsageError(f"`{param.opts[0]}` is `{value}`: give two numbers, such as `4:0.8`", ctx)
    return left, right


def _drafts(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[int, float] | None:
    found = _pair(ctx, param, value)
    if found is None:
        return None
    tokens, accepted = count(ctx, param, found[0]), share(ctx, param, found[1])
    assert tokens is not None
    assert accepted is not None
    return tokens, accepted


def _engines(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[int, int] | None:
    found = _pair(ctx, param, value)
    if found is None:
        return None
    prompts, tokens = count(ctx, param, found[0]), count(ctx, param, found[1])
    assert prompts is not None
    assert tokens is not None
    return prompts, tokens


def _counted(flag: str, text: str) -> Any:
    return click.option(flag, metavar="N", callback=count, help=f"Inference: {text}")


_OPTIONS = (
    _counted("--batch", "requests of a static batch, on each engine.  [default: 1]"),
    _counted("--input-len", "tokens of a prompt."),
    _counted("--output-len", "tokens of an answer."),
    _counted("--concurrency", "requests at any time, batched continuously, over all engines."),
    click.option(
        "--request-rate", metavar="R", callback=positive, help="Inference: requests that arrive a second, at random."
    ),
    click.option(
        "--activation-precision", metavar="NAME", help="Inference: activations of quantised layers: bf16, fp16, fp8, "
        "int8 or fp4.  [default: what goes with the weights]",
    ),
    click.option(
        "--kv-precision", metavar="NAME", help="Inference: cache in bf16, fp16, fp8, int8 or int4.  [default: bf16]"
    ),
    _counted("--attention-dp", "groups of --tp devices with attention and requests of their own.  [default: 1]"),
    click.option(
        "--gpu-memory-utilization", metavar="SHARE", callback=share, help="Inference: share of the device that the "
        "engine takes.  [default: the runtime's]",
    ),
    _counted("--max-model-len", "longest request that the engine must take.  [default: this request]"),
    _counted("--max-batched-tokens", "tokens of one forward pass.  [default: the runtime's]"),
    click.option(
        "--prefix-hit", metavar="SHARE", callback=share, help="Inference: share of the input that is cached already."
    ),
    click.option(
        "--speculative", metavar="K:A", callback=_drafts, help="Inference: K drafts a step, each accepted with "
        "probability A.",
    ),
    click.option(
        "--disaggregated", metavar="P:D", callback=_engines, help="Inference, with --concurrency: P engines for "
        "prompts and D for tokens.",
    ),
)  # fmt: skip
NAMES = (
    "batch", "input_len", "output_len", "concurrency", "request_rate", "activation_precision", "kv_precision",
    "attention_dp", "gpu_memory_utilization", "max_model_len", "max_batched_tokens", "prefix_hit", "speculative",
    "disaggregated",
)  # fmt: skip


def inference(command: Command) -> Command:
    """All of the options, in the order in which they are listed."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def taken(given: dict[str, Any]) -> dict[str, Any] | None:
    """Take these options out of `given`; None where the mode is another, which has none of them."""
    own = {name: given.pop(name) for name in NAMES}
    if given["mode"] == "inference":
        return own
    wrong = next((name for name, value in own.items() if value is not None), None)
    if wrong:
        raise refuse(f"`--{wrong.replace('_', '-')}` is of `--mode inference`")
    return None


def run(
    model: str, given: dict[str, Any], own: dict[str, Any], json_to: str | None, markdown: bool, what: str | None
) -> int:  # fmt: skip
    """`estimate --mode inference`: prints the answer, and returns the exit code."""
    explicit = _explicit(click.get_current_context())
    for flag in ("input_len", "output_len"):
        if own[flag] is None:
            raise refuse(f"`--mode inference` needs `--{flag.replace('_', '-')}`")
    from torchperf.inference import estimate_inference

    answer = estimate_inference(
        model, _request(own), _load(own), gpu=given["gpu"], system=given["system"], num_gpus=given["num_gpus"],
        precision=_precision(given, own, explicit), plan=_plan(given, own),
        runtime=given["runtime"] if "runtime" in explicit else DEFAULT_RUNTIME, power_cap=given["power_cap"],
        refresh=given["refresh"], suggest=given["suggest"] or None,
    )  # fmt: skip
    if given["strict"] and answer.unpriced:
        raise TorchperfError(
            f"{len(answer.unpriced)} operators have no rule",
            facts=[(u.op, f"{u.calls} calls, {u.share_of_bytes:.2%} of bytes") for u in answer.unpriced],
            hint="leave out `--strict` to price their bytes alone",
        )
    output.warn_unpriced(answer.unpriced)
    output.warn_guesses(answer.guesses)
    if json_to:
        from torchperf.report.inference_json import inference_dict

        output.write_json(inference_dict(answer), json_to)
    if what is not None and answer.explanation is not None:
        from torchperf.report.explanation import explanation_text

        output.write(explanation_text(answer.explanation, what), "-")
    elif markdown or json_to != "-":
        from torchperf.report.inference import sections
        from torchperf.report.section import markdown as as_markdown
        from torchperf.report.section import text

        output.write(as_markdown(sections(answer, whole=True)) if markdown else text(sections(answer)), "-")
    return 1 if answer.verdict == "does not fit" else 0


def _explicit(context: click.Context) -> set[str]:
    """Names of the options on the command line. Raises where one has no meaning in this mode."""
    found = {
        str(p.name)
        for p in context.command.params
        if p.name and context.get_parameter_source(p.name) not in (None, ParameterSource.DEFAULT)
    }
    for parameter in context.command.params:
        if parameter.name in found - SHARED - set(NAMES):
            raise refuse(f"`{parameter.opts[-1]}` has no meaning with `--mode inference`")
    return found


def _request(own: dict[str, Any]) -> Any:
    from torchperf.graph.inference import Request

    drafts, accepted = own["speculative"] or (0, 0.0)
    return Request(own["input_len"], own["output_len"], own["prefix_hit"] or 0.0, drafts, accepted)


def _load(own: dict[str, Any]) -> Any:
    from torchperf.inference import Load

    return Load(
        own["batch"] or 1, own["concurrency"], own["request_rate"], own["disaggregated"],
        own["gpu_memory_utilization"], own["max_batched_tokens"], own["max_model_len"],
    )  # fmt: skip


def _precision(given: dict[str, Any], own: dict[str, Any], explicit: set[str]) -> Any:
    from torchperf.graph.inference import InferencePrecision

    weights = given["precision"] if "precision" in explicit else "bf16"
    if weights in ("bf16-mixed", "fp16-mixed", "fp32", "tf32"):
        raise TorchperfError(
            f"`--precision {weights}` is of training",
            hint="with `--mode inference` it is that of the weights: bf16, fp16, fp8, int8, int4, nvfp4 or mxfp4",
        )
    return InferencePrecision(weights, own["activation_precision"], own["kv_precision"] or "bf16")


def _plan(given: dict[str, Any], own: dict[str, Any]) -> Any:
    from torchperf.graph.inference import InferencePlan

    return InferencePlan(
        given["tp"] or 1, given["pp"] or 1, given["ep"] or 1, own["attention_dp"] or 1, 1, given["pp_split"] or ()
    )  # fmt: skip


mode = click.option(
    "--mode",
    type=click.Choice(["train", "forward", "inference"]),
    default="train",
    show_default=True,
    help="A training step, a forward pass, or serving: prefill, decode and their cache.",
)
