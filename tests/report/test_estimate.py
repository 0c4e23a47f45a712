"""The report of an estimate: the order in which people ask, and what each line says."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace

import pytest

from torchperf.graph.estimate import Estimate, Flops, Share, Unpriced
from torchperf.graph.plan import Plan
from torchperf.report.csv import COLUMNS, estimate_csv
from torchperf.report.estimate import plan_line
from torchperf.report.json import estimate_dict
from torchperf.report.markdown import estimate_markdown
from torchperf.report.table import estimate_table

GIB = 2**30

TOP = """\
tiny on 1 x h100-sxm-80gb: one training step
batch 1, seq 8,192, bf16-mixed, adamw, recompute none, eager
2,000,000,000 parameters

fits: 50.00 of 80.00 GiB usable, 30.00 GiB (37.5 %) free

memory                     GiB  of usable
parameters                8.00     10.0 %
gradients                 8.00     10.0 %
optimizer state (adamw)  16.00     20.0 %
activations              10.00     12.5 %
logits and loss           6.00      7.5 %
temporary                 1.00      1.2 %
allocated at the peak    49.00     61.3 %
reserved by allocator    49.75     62.2 %
context and libraries     0.25      0.3 %
device                   50.00     62.5 %
usable capacity          80.00    100.0 %
peak at lm_head, backward
states alone take 32.00 GiB

bytes per parameter  weights fp32  gradients fp32  adamw m fp32  adamw v fp32  total
                                4               4             4             4     16

time
step time             500.0 ms  forward 150.0 ms, backward 300.0 ms, optimizer 50.00 ms
roofline bound        250.0 ms  at peak FLOP/s and bandwidth; the estimate is 2.00 x
host time             500.0 ms  to launch the ops; the device is idle 20.0 % of the step
tokens/s per GPU        16,384  8,192 tokens a step
samples/s per GPU            2
FLOPs, causal      270.0 TFLOP  forward 90.00 TFLOP, backward 180.0 TFLOP
FLOPs, non-causal  300.0 TFLOP  forward 100.0 TFLOP, backward 200.0 TFLOP
"""


def lines_of(text: str, start: str, count: int) -> list[str]:
    """`count` lines from the one that starts with `start` on."""
    lines = text.splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith(start))
    return lines[first : first + count]


def test_the_first_half_word_for_word(estimate: Estimate) -> None:
    assert estimate_table(estimate).startswith(TOP)


def test_utilisation_names_every_convention_in_full(estimate: Estimate) -> None:
    assert lines_of(estimate_table(estimate), "utilisation", 6) == [
        "utilisation  of peak       achieved    per token  convention",
        "MFU           60.7 %  600.0 TFLOP/s  36.60 GFLOP  non-causal, without input embedding: 6(N -",
        "                                                  N_embedding) + 12 L H D S",
        "MFU           54.6 %  540.1 TFLOP/s  33.00 GFLOP  causal: attention halved",
        "HFU           54.6 %  540.1 TFLOP/s  33.00 GFLOP  counted from the graph",
        "the peak is 989.0 TFLOP/s, dense",
    ]


def test_shares_come_longest_first_with_their_bound(estimate: Estimate) -> None:
    assert lines_of(estimate_table(estimate), "time by kind", 4) == [
        "time by kind      time   share  calls         FLOP  bytes moved  bound by",
        "matmul        300.0 ms  75.0 %    225  270.0 TFLOP      1.00 TB  compute",
        "norm          100.0 ms  25.0 %     65   1.00 GFLOP     400.0 GB  memory",
        "bound by: compute 75.0 %, memory 25.0 % of device time",
    ]
    assert lines_of(estimate_table(estimate), "top kernels", 2)[1] == (
        "aten.mm.default  m 8192, n 14336, k 4096  backward     64  50.00 ms  12.5 %  compute"
    )


def test_what_was_assumed_guessed_or_left_unpriced_is_told(estimate: Estimate) -> None:
    text = estimate_table(estimate)
    assert "assumptions\n- the sum of the outputs stands in for a loss\n" in text
    assert "guesses\n- `mask.all()` taken as true\n" in text
    assert "mylib.scan.default      4  3.0 MiB         0.2 %\n" in text
    assert text.endswith("sources: nvidia_h100_datasheet\n")


def test_order_in_which_people_ask(estimate: Estimate) -> None:
    text = estimate_table(estimate)
    parts = [
        "fits:", "\nmemory ", "\nbytes per parameter", "\nstep time", "\nutilisation", "\ntime by kind",
        "\ntime by module", "\ntop kernels", "\nsuggestions", "\nassumptions", "\nguesses", "\nunpriced ops",
    ]  # fmt: skip
    places = [text.index(part) for part in parts]
    assert places == sorted(places)


@pytest.mark.parametrize(
    ("verdict", "peak", "line"),
    [
        ("tight", 77, "tight: 78.00 of 80.00 GiB usable, 2.00 GiB (2.5 %) free"),
        ("does not fit", 99, "does not fit: 100.00 of 80.00 GiB usable, 20.00 GiB (25.0 %) too much"),
    ],
)
def test_verdict(estimate: Estimate, verdict: str, peak: int, line: str) -> None:
    memory = replace(estimate.memory, peak=peak * GIB)
    assert line in estimate_table(replace(estimate, verdict=verdict, memory=memory)).splitlines()


@pytest.mark.parametrize(("global_batch", "runs"), [(4, "1 micro-batch a"), (8, "2 micro-batches a")])
def test_one_micro_batch_is_one(global_batch: int, runs: str) -> None:
    plan = Plan(dp=4, micro_batch=1, global_batch=global_batch).resolved()
    assert plan_line(plan, "train") == f"dp 4, global batch {global_batch} in {runs} replica"


def test_a_loud_loss_brings_a_hint_and_a_quiet_one_does_not(estimate: Estimate) -> None:
    hint = "- logits and loss take 6.00 GiB, 12.0 % of memory: a fused or chunked cross-entropy"
    assert hint in estimate_table(estimate)
    assert estimate_dict(estimate)["advice"][0].startswith("logits and loss take 6.00 GiB")
    quiet = replace(estimate, memory=replace(estimate.memory, logits_loss=GIB))
    assert "cross-entropy" not in estimate_table(quiet)
    assert "logits and loss           1.00" in estimate_table(quiet)


def test_a_forward_pass_has_no_optimizer(estimate: Estimate) -> None:
    memory = replace(estimate.memory, gradients=0, optimizer=0, bytes_per_parameter=())
    flops = Flops(90 * 10**12, 0, 0)
    text = estimate_table(replace(estimate, mode="forward", memory=memory, flops=flops, flops_noncausal=flops, hfu=()))
    assert "one forward pass\nbatch 1, seq 8,192, bf16-mixed, eager\n" in text
    assert "forward time" in text
    assert "FLOPs              90.00 TFLOP  forward 90.00 TFLOP\n" in text
    assert not any(word in text for word in ("gradients", "adamw", "recompute", "HFU", "FLOPs, causal"))


def test_a_model_without_tokens_counts_samples(estimate: Estimate) -> None:
    vision = replace(estimate, tokens_per_step=0, tokens_per_s=0.0, samples_per_s=2816.4)
    assert "tokens/s" not in estimate_table(vision)
    assert "samples/s per GPU        2,816" in estimate_table(vision)


def test_several_gpus(estimate: Estimate) -> None:
    text = estimate_table(replace(estimate, num_gpus=8))
    assert "tokens/s per GPU        16,384  131,072 over 8 GPUs; 8,192 tokens a step" in text
    assert estimate_dict(replace(estimate, num_gpus=8))["tokens_per_s"] == 131_072


@pytest.fixture
def large(estimate: Estimate) -> Estimate:
    """More of everything than a page has room for."""
    path = "model.decoder.language_model.layers.*.mixture_of_experts.experts.grouped.gate_up_proj"
    shares = tuple(Share(f"{path}.{i}", 0.01, 3, 10**12, 10**9, "memory") for i in range(40))
    kernels = tuple(replace(s, phase="backward", detail="m 8192, n 14336, k 4096, batch 128") for s in shares)
    return replace(
        estimate,
        by_kind=tuple(replace(s, name=f"kind{i}") for i, s in enumerate(shares)),
        by_module=shares,
        top_kernels=kernels,
        assumptions=tuple(f"assumption {i}" for i in range(20)),
        guesses=tuple(f"guess {i}" for i in range(20)),
        unpriced=tuple(Unpriced(f"mylib.op{i}.default", 1, i, 0.0) for i in range(20)),
    )


def test_a_large_report_stays_on_a_page(large: Estimate) -> None:
    lines = estimate_table(large).splitlines()
    assert len(lines) <= 95
    assert max(len(line) for line in lines) <= 100
    assert "34 others     340.0 ms  85.0 %    102  34.00 TFLOP     34.00 GB" in lines
    assert lines.count("- and 15 more: `--json -` lists all") == 2
    assert "and 15 more: `--json -` lists all" in lines


def test_markdown_and_json_cut_nothing(large: Estimate) -> None:
    assert "guess 19" in estimate_markdown(large)
    assert "mylib.op0.default" in estimate_markdown(large)
    assert len(estimate_dict(large)["guesses"]) == 20
    assert len(estimate_dict(large)["time_by_module"]) == 40


def test_markdown_is_tables_under_headings(estimate: Estimate) -> None:
    text = estimate_markdown(estimate)
    assert "## memory\n\n| memory                  |   GiB |   of usable |\n|---" in text
    assert "## assumptions\n\n- the sum" in text


def test_json_carries_units_and_survives_a_round_trip(estimate: Estimate) -> None:
    answer = estimate_dict(estimate)
    assert json.loads(json.dumps(answer, allow_nan=False)) == answer
    assert answer["step_time_s"] == 0.5
    assert answer["memory_bytes"]["activations"] == 10 * GIB
    assert answer["memory_bytes"]["device"] == 50 * GIB
    assert answer["verdict"] == "fits"
    assert answer["margin"] == 0.375
    assert answer["margin_bytes"] == 30 * GIB
    assert answer["tokens_per_s_per_gpu"] == 16384
    assert answer["flops"] == {"forward": 90 * 10**12, "backward": 180 * 10**12, "recompute": 0}
    assert answer["flops_noncausal"]["forward"] == 100 * 10**12
    assert answer["mfu"][1] == {
        "convention": "causal: attention halved", "value": 0.5461, "flops_per_token": 33e9,
    }  # fmt: skip
    unpriced = {"op": "mylib.scan.default", "calls": 4, "bytes": 3 * 2**20, "share_of_bytes": 0.002}
    assert answer["unpriced"] == [unpriced]


def test_json_keys_are_pinned(estimate: Estimate) -> None:
    assert list(estimate_dict(estimate)) == [
        "model", "mode", "gpu", "num_gpus", "system", "plan", "sizes",
        "precision", "optimizer", "recompute", "runtime",
        "parameters", "trainable_parameters", "verdict", "margin", "margin_bytes", "memory_bytes",
        "memory_peak_at", "micro_batches_in_flight", "stages", "bytes_per_parameter", "step_time_s", "device_time_s",
        "host_time_s", "phase_time_s", "bubble_s", "run", "communication", "compute_slowed_s", "roofline_time_s",
        "validated", "tokens_per_step",
        "tokens_per_s_per_gpu", "tokens_per_s",
        "samples_per_s_per_gpu", "flops", "flops_noncausal", "peak_flops_per_s", "mfu", "hfu",
        "time_by_kind", "time_by_module", "time_by_bound", "top_kernels", "unpriced", "guesses",
        "assumptions", "suggestions", "advice", "sources",
    ]  # fmt: skip


def test_csv_has_a_row_a_share(estimate: Estimate) -> None:
    rows = list(csv.DictReader(io.StringIO(estimate_csv(estimate))))
    assert tuple(rows[0]) == COLUMNS
    kinds = [row for row in rows if row["table"] == "kind"]
    assert [(row["name"], float(row["seconds"]), row["bound"]) for row in kinds] == [
        ("norm", 0.1, "memory"),
        ("matmul", 0.3, "compute"),
    ]
    memory = {row["name"]: int(row["bytes"]) for row in rows if row["table"] == "memory"}
    assert memory["logits_loss"] == 6 * GIB
    assert {row["table"] for row in rows} == {"kind", "module", "bound", "kernel", "memory", "unpriced"}
