"""The reports of `inspect`, `mfu`, `hardware` and `models`."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from torchperf.graph.inspection import Inspection, MfuReport
from torchperf.graph.runtime import Runtime, Training
from torchperf.graph.system import Interconnect, Sourced
from torchperf.report.json import hardware_dict, inspection_dict, mfu_dict
from torchperf.report.table import hardware_table, inspection_table, mfu_table, models_table


def test_inspection(inspection: Inspection) -> None:
    assert inspection_table(inspection) == (
        "tiny (Tiny): train, batch 1, seq 16\n"
        "110 parameters, 100 trained\n"
        "\n"
        "module         calls  parameters  FLOP forward  backward  bytes moved  activations\n"
        "(whole model)      1         110        2.00 M    4.00 M      3.0 MiB      1.0 MiB\n"
        "layers.*           2         100        1.50 M    3.00 M      1.0 MiB    512.0 KiB\n"
    )
    assert inspection_dict(inspection)["modules"][1]["flops"] == {"forward": 1_500_000, "backward": 3_000_000}


def test_inspection_of_a_forward_pass_has_no_backward(inspection: Inspection) -> None:
    text = inspection_table(replace(inspection, mode="forward"))
    assert "backward" not in text
    assert "activations" not in text


def test_days_and_dollars(run: MfuReport) -> None:
    """1e12 tokens on 64 H100 at 6,667 tokens/s/GPU and $2.69: 27.1 days, 41,665 GPU-hours, $112.1k."""
    assert run.days == pytest.approx(27.1, rel=0.005)
    assert run.gpu_hours == pytest.approx(41_665, rel=0.0001)
    assert run.dollars == pytest.approx(112_100, rel=0.005)
    assert mfu_table(run) == (
        "llama-3.1-8b on 64 x h100-sxm-80gb: bf16-mixed, seq 8,192\n"
        "6,667 tokens/s per GPU, 426,688 over 64 GPUs\n"
        "N = 8,030,261,248 parameters, 525,336,576 in the input embedding\n"
        "\n"
        "utilisation  of peak        per GPU     per token  convention\n"
        "MFU          39.04 %  386.1 TFLOP/s  57.914 GFLOP  non-causal, without input embedding\n"
        "the peak is 989.0 TFLOP/s, dense\n"
        "\n"
        "cost\n"
        "tokens     1,000,000,000,000\n"
        "wall time  27.1 days\n"
        "GPU-hours  41,665\n"
        "price      $112,078 at $2.69 per GPU-hour\n"
        "at 100 % goodput, no time lost to restarts or checkpoints; `--goodput 0.9` counts such losses\n"
    )


def test_goodput_stretches_time_and_price(run: MfuReport) -> None:
    slower = replace(run, goodput=0.9)
    assert slower.days == pytest.approx(run.days / 0.9)  # type: ignore[operator]
    assert slower.dollars == pytest.approx(run.dollars / 0.9)  # type: ignore[operator]
    assert "at 90 % goodput" in mfu_table(slower)
    assert mfu_dict(slower)["goodput"] == 0.9


def test_a_measured_wall_time_holds_its_goodput(run: MfuReport) -> None:
    measured = replace(run, tokens=16_384_000, wall_s=48_600.0, price_per_gpu_hour=None)
    assert "wall time  13.50 h\n" in mfu_table(measured)
    assert "the wall time was measured" in mfu_table(measured)
    assert mfu_dict(measured)["goodput"] is None
    assert mfu_dict(measured)["dollars"] is None


def test_a_rate_alone_has_no_cost(run: MfuReport) -> None:
    rate = replace(run, tokens=None)
    assert "cost" not in mfu_table(rate)
    answer = mfu_dict(rate)
    assert [answer[key] for key in ("days", "gpu_hours", "dollars", "wall_time_s")] == [None] * 4
    assert answer["mfu"][0]["flops_per_s_per_gpu"] == pytest.approx(386.1e12, rel=1e-3)


def test_hardware_shows_every_value_with_its_reference() -> None:
    bandwidth = Sourced(450e9, "B/s", "datasheet", "somebook", "18 links", "per_direction")
    latency = Sourced(1.5e-6, "s", "measured", "somebench", "", "per_hop")
    share = Sourced(0.75, "1", "fitted", "somefit", "256 MiB", "per_direction")
    link = Interconnect(
        "nvl",
        ("nvl-4",),
        bandwidth,
        bandwidth,
        latency,
        latency,
        (("all_reduce", 8, share),),
        "links/nvl.toml",
    )
    assert hardware_table(link) == (
        "nvl: interconnect\n"
        "also: nvl-4\n"
        "file: links/nvl.toml\n"
        "\n"
        "value                                basis      source     scope; condition\n"
        "bandwidth                450.0 GB/s  datasheet  somebook   per_direction; 18 links\n"
        "pair_bandwidth           450.0 GB/s  datasheet  somebook   per_direction; 18 links\n"
        "latency                     1.50 us  measured   somebench  per_hop\n"
        "floor                       1.50 us  measured   somebench  per_hop\n"
        "efficiency.all_reduce.8        0.75  fitted     somefit    per_direction; 256 MiB\n"
    )
    answer = hardware_dict(link)
    assert answer["kind"] == "interconnect"
    assert answer["values"]["latency"] == {
        "value": 1.5e-6, "unit": "s", "basis": "measured", "source": "somebench", "condition": "",
        "scope": "per_hop",
    }  # fmt: skip
    json.dumps(answer, allow_nan=False)


def test_a_runtime_shows_its_constants() -> None:
    one = Sourced(0.05, "1", "assumed", "us", "", "per_process")
    training = Training("fp32", "fused", "copy", ("norm", "step"), (), True, True, False, one, one)
    runtime = Runtime("eager", (), "op by op", False, "flash", one, one, one, training, "eager.toml")
    assert list(hardware_dict(runtime)["values"]) == [
        "launch", "reserve", "allocator_fraction", "training.overlap_slowdown", "training.bucket",
    ]  # fmt: skip
    assert "attention flash, pointwise chains not fused" in hardware_table(runtime)
    assert "optimizer passes norm, step; overlapped with compute: nothing" in hardware_table(runtime)


def test_models_tell_a_shared_note_once() -> None:
    rows = [("a-1b", 1_000, "here", "dense"), ("a-2b", 22_000, "there", "dense"), ("b", 3, "here", "")]
    assert models_table(rows) == (
        "model  parameters  source\n"
        "a-1b        1,000  here\n"
        "a-2b       22,000  there\n"
        "b               3  here\n"
        "- a-1b, a-2b: dense\n"
    )
