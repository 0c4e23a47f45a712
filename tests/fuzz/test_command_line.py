"""The command line with any flags and values: exit code 0, 1 or 2, one message, no traceback."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from click.testing import Result
from fuzz_examples import share
from hypothesis import given
from hypothesis import strategies as st

NUMBERS = st.sampled_from(
    [
        "1",
        "2",
        "3",
        "4",
        "8",
        "0",
        "-1",
        "1e3",
        "1_0",
        "0.5",
        "nan",
        "inf",
        "1e400",
        "9" * 30,
        "1e30",
        "x",
        "",
        "٣",
        " 2",
    ]
)
WORDS = st.one_of(
    st.sampled_from(
        ["h100-sxm-80gb", "h100", "dgx-h100", "a100", "eager", "compile", "vllm", "fsdp-eager", "bf16", "fp8", "hf",
    "-",
         "", ".", "/", "/dev/null", "x" * 300, "nosuch/file", "nosuch/folder/file.json", "a\x00b", "../../etc/passwd",
         "./x.toml", "${HOME}", "--help", "4:0.8", "1:1", "16,32", "1,,2", "full:1", "modules:mlp", "none", "ring",
         "NVL72", "__import__('os')", "%s%n", "train", "forward", "inference", "step-time", "\ud800"]
    ),
    st.text(max_size=5),
)  # fmt: skip
COUNTED = [
    "--num-gpus", "--micro-batch", "--seq-len", "--tp", "--pp", "--dp", "--cp", "--ep", "--dp-shard", "--expert-tp",
    "--virtual-stages", "--global-batch", "--tokens", "--price", "--goodput", "--power-cap", "--moe-imbalance",
    "--depth",
    "--batch", "--input-len", "--output-len", "--concurrency", "--request-rate", "--attention-dp", "--max-model-len",
    "--gpu-memory-utilization", "--prefix-hit", "--m", "--n", "--k", "--heads", "--q", "--kv", "--bytes", "--ranks",
    "--parameters", "--flops-per-token", "--tokens-per-s-per-gpu", "--wall-s", "--steps", "--groups", "--imbalance",
]  # fmt: skip
NAMED = [
    "--gpu", "--system", "--runtime", "--precision", "--optimizer", "--attention", "--mode", "--zero", "--schedule",
    "--cp-kind", "--reduce-dtype", "--recompute", "--offload", "--tp-plan", "--pp-split", "--speculative", "--json",
    "--disaggregated", "--kv-precision", "--activation-precision", "--dtype", "--library", "--algorithm", "--kind",
    "--kernel", "--csv", "--trace", "--explain", "-o",
]  # fmt: skip
FLAGS = ["--sequence-parallel", "--no-reshard", "--strict", "--markdown", "--sweep", "--full", "--backward", "--text",
         "--ops", "--quantise", "--sustained", "--refresh", "--debug-not", "-h"]  # fmt: skip
WHOLE = {
    "estimate": ("GRAPH", "--gpu", "h100-sxm-80gb", "--seq-len", "64"),
    "estimate serving": ("GRAPH", "--gpu", "h100-sxm-80gb", "--mode", "inference", "--input-len", "8",
        "--output-len", "8"),
    "inspect": ("GRAPH", "--seq-len", "64"),
    "partition": ("GRAPH", "--tp", "2", "--seq-len", "64"),
    "capture": ("GRAPH", "-o", "out.json"),
    "explain": ("ANSWER",),
    "mfu": ("--parameters", "7e9", "--gpu", "h100-sxm-80gb", "--seq-len", "2048", "--tokens-per-s-per-gpu", "1e4"),
    "kernel matmul": ("--gpu", "h100-sxm-80gb", "--m", "64", "--n", "64", "--k", "64"),
    "kernel attention": ("--gpu", "h100-sxm-80gb", "--heads", "4", "--q", "64"),
    "kernel collective": ("--system", "dgx-h100", "--bytes", "1e6", "--ranks", "4"),
    "hardware show": ("h100-sxm-80gb",),
    "hardware check": ("GRAPH",),
    "validate ops": ("--data", "GRAPH"),
    "validate training": ("--data", "ANSWER"),
    "models": (),
}  # fmt: skip


@st.composite
def lines(draw: st.DrawFn) -> tuple[str, list[str]]:
    """A command line that works, with flags added, and values or words changed or left out."""
    command = draw(st.sampled_from(list(WHOLE)))
    words = list(WHOLE[command])
    for _ in range(draw(st.integers(0, 3))):
        match draw(st.integers(0, 7)):
            case 0 if words:
                words[draw(st.integers(0, len(words) - 1))] = draw(st.one_of(NUMBERS, WORDS))
            case 1 if words:
                del words[draw(st.integers(0, len(words) - 1))]
            case 2:
                words.append(draw(st.one_of(WORDS, st.sampled_from(FLAGS))))
            case 3 | 4:
                words += [draw(st.sampled_from(NAMED)), draw(WORDS)]
            case _:
                words += [draw(st.sampled_from(COUNTED)), draw(NUMBERS)]
    return command, words


@share(60)
@given(line=lines())
def test_command_lines(
    ends_well: Callable[..., Result], graph_file: Path, answer_file: Path, empty: Path, line: tuple[str, list[str]]
) -> None:
    """Any command; where it fails it leaves no file half-written."""
    files = {"GRAPH": str(graph_file), "ANSWER": str(answer_file)}
    command, words = line
    ends_well(*command.removesuffix(" serving").split(), *(files.get(word, word) for word in words))
    assert not [path for path in empty.rglob(".*") if path.is_file()], "a temporary file was left behind"
