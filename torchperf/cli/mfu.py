"""`torchperf mfu`: utilisation of a run that was measured, and what its tokens cost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from . import options, output
from .failure import refuse


@click.command("mfu", short_help="MFU and HFU of a measured run in each convention; its days and dollars.")
@click.argument("model", metavar="[MODEL]", required=False)
@click.option(
    "--parameters",
    callback=options.count,
    metavar="N",
    help="Parameters, in place of MODEL: then only 6 N is counted, no attention.",
)
@click.option(
    "--flops-per-token",
    callback=options.positive,
    metavar="F",
    help="Training FLOPs of one token, in place of MODEL.",
)
@options.gpu
@options.num_gpus
@options.seq_len
@options.precision
@click.option("--tokens-per-s-per-gpu", callback=options.positive, metavar="X", help="The rate that was measured.")
@click.option("--tokens", callback=options.count, metavar="N", help="Tokens over all GPUs, such as 1e12.")
@click.option(
    "--global-batch",
    callback=options.count,
    metavar="N",
    help="Sequences a step over all GPUs: with --steps, in place of --tokens.",
)
@click.option("--steps", callback=options.count, metavar="N", help="Steps, with --global-batch.")
@click.option(
    "--wall-s",
    callback=options.positive,
    metavar="T",
    help="Seconds that --tokens took, in place of the rate.",
)
@click.option("--price", callback=options.positive, metavar="DOLLARS", help="Dollars per GPU-hour.")
@click.option(
    "--goodput",
    callback=options.share,
    metavar="SHARE",
    help="Share of the wall time that counts, such as 0.9.  [default: 1]",
)
@options.refresh
@options.json_to
@options.debug
def command(model: str | None, price: float | None, goodput: float | None, json_to: str | None, **run: Any) -> None:
    """MFU and HFU of a measured run, in each named convention.

    Give the rate of one GPU, or the tokens of the whole run and the seconds they took. Tokens and a
    rate give days and GPU-hours, and with --price dollars.

    \b
    torchperf mfu llama-3.1-8b --gpu h100-sxm-80gb --num-gpus 64 --seq-len 8192
        --tokens-per-s-per-gpu 6667 --tokens 1e12 --price 2.69
    torchperf mfu --parameters 70e9 --gpu a100-sxm-80gb --num-gpus 16 --seq-len 2048
        --global-batch 16 --steps 500 --wall-s 48600
    """
    _check(model, price, goodput, run)
    from torchperf.measured_run import mfu

    answer = mfu(model, price_per_gpu_hour=price, goodput=1.0 if goodput is None else goodput, **run)
    if json_to:
        from torchperf.report.json import mfu_dict

        output.write_json(mfu_dict(answer), json_to)
    if json_to != "-":
        from torchperf.report.table import mfu_table

        output.write(mfu_table(answer), "-")


def _check(model: str | None, price: float | None, goodput: float | None, run: Mapping[str, Any]) -> None:
    """Refuse what says too little, or the same thing twice."""
    if (model, run["parameters"], run["flops_per_token"]).count(None) != 2:
        raise refuse("give MODEL, or `--parameters`, or `--flops-per-token`, and not more than one")
    seq_len, tokens, global_batch, steps = (run[name] for name in ("seq_len", "tokens", "global_batch", "steps"))
    rate, wall_s = run["tokens_per_s_per_gpu"], run["wall_s"]
    if (global_batch is None) != (steps is None):
        raise refuse("`--global-batch` and `--steps` go together")
    if tokens is not None and steps is not None:
        raise refuse("give `--tokens`, or `--global-batch` and `--steps`, and not both")
    if steps is not None and model is None and seq_len is None:
        raise refuse("`--global-batch` and `--steps` need `--seq-len` to give tokens")
    has_tokens = tokens is not None or steps is not None
    if rate is None and wall_s is None:
        raise refuse("give the run: `--tokens-per-s-per-gpu`, or `--tokens` and `--wall-s`")
    if rate is not None and wall_s is not None:
        raise refuse("give `--tokens-per-s-per-gpu` or `--wall-s`, and not both")
    if wall_s is not None and not has_tokens:
        raise refuse("`--wall-s` needs `--tokens`, or `--global-batch` and `--steps`")
    if price is not None and not has_tokens:
        raise refuse("`--price` needs `--tokens`: dollars are for a number of tokens")
    if goodput is not None and wall_s is not None:
        raise refuse("`--goodput` does not go with `--wall-s`: a measured wall time holds what was lost already")
    if goodput is not None and not has_tokens:
        raise refuse("`--goodput` needs `--tokens`: it stretches the wall time of a number of tokens")
