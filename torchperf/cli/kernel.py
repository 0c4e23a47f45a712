"""`torchperf kernel`: the price of one kernel with its terms, to check a number by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from . import options, output

if TYPE_CHECKING:
    from torchperf.graph.price import Price

DTYPES = ["bf16", "fp16", "fp32", "tf32", "fp8", "fp8_block", "nvfp4", "int8", "int8_wo", "int4_wo"]


@click.group("kernel", short_help="One kernel's or collective's price with its terms and sources.")
def command() -> None:
    """The price of one matrix product, attention or collective, with every term and its source."""


def _size(
    name: str, help: str, default: str | None = None, required: bool = False
) -> Callable[[options.Command], options.Command]:
    given: dict[str, Any] = {} if default is None else {"default": default, "show_default": True}
    return click.option(f"--{name}", callback=options.count, metavar="N", required=required, help=help, **given)


sweep = click.option("--sweep", is_flag=True, help="A curve: powers of two up to the first size, a line each.")
sustained = click.option("--sustained", is_flag=True, help="Steady clocks, as in training; else a short burst.")


@command.command("matmul")
@options.gpu
@_size("m", "Rows of x and y.", required=True)
@_size("n", "Columns of w and y.", required=True)
@_size("k", "What is summed over.", required=True)
@_size("batch", "Products side by side.", "1")
@click.option("--groups", callback=options.count, metavar="N", help="Experts that the rows are shared over.")
@click.option("--imbalance", callback=options.positive, metavar="X", default="1", help="Most loaded expert over mean.")
@click.option("--dtype", type=click.Choice(DTYPES), default="bf16", show_default=True, help="Type of the operands.")
@click.option("--quantise", is_flag=True, help="Add the kernel that quantises the activations.")
@sustained
@sweep
@options.json_to
@options.debug
def matmul(
    gpu: str, m: int, n: int, k: int, batch: int, groups: int | None, imbalance: float, dtype: str, quantise: bool,
    sustained: bool, sweep: bool, json_to: str | None,
) -> None:  # fmt: skip
    """x[m,k] . w[k,n] -> y[m,n]; --sweep runs m from 1.

    \b
    torchperf kernel matmul --gpu h100-sxm-80gb --m 4096 --n 14336 --k 4096 --dtype bf16
    """
    from torchperf import hardware
    from torchperf.kernels import matmul_price

    device = hardware.load_accelerator(gpu)

    def price(rows: int) -> Price:
        return matmul_price(
            device, rows, n, k, batch=batch, groups=groups, imbalance=imbalance, dtype=dtype, quantise=quantise,
            sustained=sustained,
        )  # fmt: skip

    _show(f"matmul m={{}} n={n} k={k} batch={batch} {dtype} on {device.name}", price, m, sweep, json_to)


@command.command("attention")
@options.gpu
@_size("batch", "Sequences.", "1")
@_size("heads", "Query heads.", required=True)
@_size("kv-heads", "Key and value heads; as many as query heads unless given.")
@_size("head-dim", "Dims of a query and key head.", "128")
@_size("v-head-dim", "Dims of a value head; as of a query head unless given.")
@_size("q", "Queries a sequence.", required=True)
@_size("kv", "Keys a sequence; as many as queries unless given.")
@click.option("--full", is_flag=True, help="Every query sees every key; else causal.")
@click.option("--window", callback=options.count, metavar="N", help="Keys that a query sees at most.")
@click.option("--backward", is_flag=True, help="The backward kernel.")
@click.option(
    "--kernel",
    "library",
    type=click.Choice(["default", "vllm", "trtllm"]),
    default="default",
    show_default=True,
    help="PyTorch's own, or the kernel of a serving library.",
)
@click.option(
    "--dtype",
    type=click.Choice(["bf16", "fp16", "fp8"]),
    default="bf16",
    show_default=True,
    help="Type of queries, keys and values.",
)
@click.option("--kv-dtype", type=click.Choice(["bf16", "fp8"]), help="Type of the cache, where it is another.")
@sweep
@options.json_to
@options.debug
def attention(
    gpu: str, batch: int, heads: int, kv_heads: int | None, head_dim: int, v_head_dim: int | None, q: int,
    kv: int | None, full: bool, window: int | None, backward: bool, library: str, dtype: str, kv_dtype: str | None,
    sweep: bool, json_to: str | None,
) -> None:  # fmt: skip
    """softmax(q k^T) v; --sweep runs q (and kv with it) from 1.

    \b
    torchperf kernel attention --gpu a100-sxm-80gb --heads 32 --kv-heads 8 --q 4096
    torchperf kernel attention --gpu h200 --batch 64 --heads 64 --kv-heads 8 --q 1 --kv 8192 --kernel vllm
    """
    from torchperf import hardware
    from torchperf.kernels import attention_price

    device = hardware.load_accelerator(gpu)

    def price(queries: int) -> Price:
        return attention_price(
            device, queries, kv if kv is not None else queries, batch=batch, heads=heads, kv_heads=kv_heads or heads,
            head_dim=head_dim, v_head_dim=v_head_dim or head_dim, causal=not full, window=window, backward=backward,
            library=library, dtype=dtype, kv_dtype=kv_dtype,
        )  # fmt: skip

    name = f"attention batch={batch} heads={heads}/{kv_heads or heads} head_dim={head_dim} q={{}} kv={kv or 'q'}"
    _show(f"{name} {dtype} on {device.name}", price, q, sweep, json_to)


@command.command("collective")
@click.option("--system", required=True, metavar="NAME", help="System: a name (`torchperf hardware list`) or a file.")
@click.option(
    "--kind",
    type=click.Choice(["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "p2p"]),
    default="all_reduce",
    show_default=True,
    help="What is done; p2p is a send and its receive.",
)
@_size("bytes", "The whole tensor, as nccl-tests counts it.", required=True)
@_size("ranks", "Devices in the group.", required=True)
@click.option("--library", default="nccl", show_default=True, help="nccl, nccl_kernel, vllm_graph, vllm_eager, trtllm.")
@click.option("--algorithm", default="auto", show_default=True, help="auto, ring, tree, nvls, one_shot, two_shot.")
@sweep
@options.json_to
@options.debug
def collective(
    system: str, kind: str, bytes: int, ranks: int, library: str, algorithm: str, sweep: bool, json_to: str | None
) -> None:
    """A collective over some devices of a system; --sweep runs the bytes from 1.

    \b
    torchperf kernel collective --system dgx-h100 --kind all_reduce --bytes 64e6 --ranks 8
    """
    from torchperf import hardware
    from torchperf.price.collective import collective as collective_price

    loaded = hardware.load_system(system)

    def price(nbytes: int) -> Price:
        return collective_price(kind, float(nbytes), ranks, loaded, library=library, algorithm=algorithm)

    _show(f"{kind} of {{}} bytes over {ranks} of {loaded.name}, {library}", price, bytes, sweep, json_to)


def _show(title: str, price: Callable[[int], Price], size: int, sweep: bool, json_to: str | None) -> None:
    from torchperf.report.kernel import kernel_dict, kernel_table, sweep_table

    sizes = [1 << i for i in range(size.bit_length()) if 1 << i < size] + [size] if sweep else [size]
    found = [(one, price(one)) for one in sizes]
    if json_to:
        output.write_json(kernel_dict(title, found), json_to)
    if json_to != "-":
        text = sweep_table(title, found) if sweep else kernel_table(title.format(size), found[0][1])
        output.write(text, "-")
