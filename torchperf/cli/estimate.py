"""`torchperf estimate`: the main job."""

from __future__ import annotations

from typing import Any

import click

from . import inference_options, options, output
from .failure import refuse
from .plan_options import parallelism, plan_of

DOES_NOT_FIT = 1


@click.command("estimate", short_help="Does it fit, how long is a step, and where does the time go.")
@options.model
@click.option(
    "--gpu", default="", metavar="NAME", help="Accelerator: a name (`torchperf hardware list`) or a TOML file."
)
@click.option("--system", metavar="NAME", help="Nodes and their links.  [default: the first one with that GPU]")
@click.option("--num-gpus", metavar="N", callback=options.count, help="Number of GPUs.  [default: what the plan needs]")
@inference_options.mode
@options.seq_len
@options.micro_batch
@options.precision
@click.option(
    "--optimizer",
    type=click.Choice(["adamw", "adamw-bf16", "adam8bit", "sgd", "adafactor", "lion"]),
    default="adamw",
    show_default=True,
    help="Optimizer, priced from the parameters.",
)
@click.option(
    "--attention",
    type=click.Choice(["auto", "flash", "unfused"]),
    default="auto",
    show_default=True,
    help="Form of attention; auto: as written under eager, else as the runtime has it.",
)
@click.option(
    "--runtime",
    default="eager",
    show_default=True,
    metavar="NAME",
    help="eager, compile, megatron-core, fsdp-eager, fsdp-compile, ... (REFERENCE.md has all), or a TOML file.",
)
@parallelism
@inference_options.inference
@options.power_cap
@click.option("--tokens", metavar="N", callback=options.count, help="Tokens of a whole run: tells days and GPU-hours.")
@click.option(
    "--price", "price_per_gpu_hour", metavar="DOLLARS", callback=options.positive,
    help="With --tokens: dollars per GPU-hour.",
)  # fmt: skip
@click.option(
    "--goodput",
    metavar="SHARE",
    callback=options.share,
    default="1",
    show_default=True,
    help="With --tokens: share of the time that trains; the rest goes to failures and restarts.",
)
@click.option(
    "--trace", "trace_to", metavar="FILE", help="Write one step as a Chrome trace (Perfetto): a row a rank and stream."
)
@click.option(
    "--suggest", is_flag=True, help="Price other plans too, and tell what they save.  [default: only where it does not "
    "fit, or tightly]",
)  # fmt: skip
@click.option("--strict", is_flag=True, help="An op without a rule is an error.")
@options.refresh
@options.json_to
@click.option(
    "--csv",
    "csv_to",
    metavar="FILE|-",
    help="Write the shares as CSV to a file, or to stdout in place of the table.",
)
@click.option(
    "--explain", "explain_what", metavar="[WHAT]", is_flag=False, flag_value="", help="Print how the numbers (or the "
    "line called WHAT) come about, in place of the table; as `torchperf explain` of a saved answer.",
)  # fmt: skip
@click.option("--markdown", is_flag=True, help="Print Markdown in place of the table.")
@options.debug
def command(
    model: str, micro_batch: int | None, json_to: str | None, csv_to: str | None, markdown: bool, trace_to: str | None,
    explain_what: str | None, **given: Any,
) -> None:  # fmt: skip
    """Does MODEL fit, how long is a step, and where does the time go.

    MODEL is a model.py (or model.py:name), a folder with config.json, a saved graph, a bundled name
    (`torchperf models`) or a hub id.

    \b
    torchperf estimate llama-3.1-8b --gpu h100-sxm-80gb
    torchperf estimate llama-3.1-70b --gpu h100-sxm-80gb --num-gpus 64 --tp 4 --pp 4 --sequence-parallel \\
        --global-batch 128 --zero 1 --runtime megatron-core
    torchperf estimate llama-3.1-8b --gpu h100-sxm-80gb --mode inference --input-len 1024 --output-len 256 \\
        --concurrency 64 --runtime vllm

    Exits with 0 where it fits, 1 where it does not, 2 on an error.
    """
    if trace_to == "-":
        raise refuse("`--trace` needs a file")
    if [json_to, csv_to].count("-") + markdown + (explain_what is not None) > 1:
        raise refuse("only one of `--json -`, `--csv -`, `--markdown` and `--explain` can go to stdout")
    if given["price_per_gpu_hour"] and not given["tokens"]:
        raise refuse("`--price` needs `--tokens`: dollars are for a number of tokens")
    if options.explicit("goodput") and not given["tokens"]:
        raise refuse("`--goodput` needs `--tokens`: it is of the time of a whole run")
    served = inference_options.taken(given)
    if served is not None:
        click.get_current_context().exit(inference_options.run(model, given, served, json_to, markdown, explain_what))
    from torchperf import pipeline

    plan = plan_of(given, micro_batch)
    given["suggest"] = given["suggest"] or None
    answer, step = pipeline.estimated(model, plan=plan, **given)
    if trace_to:
        from torchperf.report.trace import trace
        from torchperf.step_timeline import timeline

        output.write_json(trace(timeline(step)), trace_to, indent=None)
    output.warn_unpriced(answer.unpriced)
    output.warn_guesses(answer.guesses)
    explanation = None
    if json_to or explain_what is not None:
        from torchperf.explanation import explain
        from torchperf.report.explanation_json import KEY, explanation_dict

        explanation = explain(answer, step)
    if json_to and explanation is not None:
        from torchperf.report.json import estimate_dict

        output.write_json(estimate_dict(answer) | {KEY: explanation_dict(explanation)}, json_to)
    if csv_to:
        from torchperf.report.csv import estimate_csv

        output.write(estimate_csv(answer), csv_to)
    if explain_what is not None and explanation is not None:
        from torchperf.report.explanation import explanation_text

        output.write(explanation_text(explanation, explain_what), "-")
    elif markdown:
        from torchperf.report.markdown import estimate_markdown

        output.write(estimate_markdown(answer), "-")
    elif "-" not in (json_to, csv_to):
        from torchperf.report.table import estimate_table

        output.write(estimate_table(answer), "-")
    click.get_current_context().exit(DOES_NOT_FIT if answer.verdict == "does not fit" else 0)
