"""An estimate made by hand, whose figures are round enough to follow through the report."""

from __future__ import annotations

import pytest

from torchperf.graph.estimate import Estimate, Flops, Memory, Mfu, Share, Unpriced
from torchperf.graph.inspection import Inspection, MfuReport, ModuleRow

GIB = 2**30


def memory() -> Memory:
    """49 of 80 GiB at the peak, 1 of them the framework's."""
    return Memory(
        parameters=8 * GIB,
        buffers=0,
        gradients=8 * GIB,
        optimizer=16 * GIB,
        activations=10 * GIB,
        logits_loss=6 * GIB,
        temporary=1 * GIB,
        reserve=1 * GIB,
        context=GIB // 4,
        peak=49 * GIB,
        usable=80 * GIB,
        peak_at="lm_head, backward",
        bytes_per_parameter=(
            ("weights fp32", 4),
            ("gradients fp32", 4),
            ("adamw m fp32", 4),
            ("adamw v fp32", 4),
        ),
    )


@pytest.fixture
def estimate() -> Estimate:
    """A small model that fits, with one op without a rule and a loud loss."""
    matmul = Share("matmul", 0.300, 225, 270 * 10**12, 10**12, "compute")
    norm = Share("norm", 0.100, 65, 10**9, 4 * 10**11, "memory")
    kernel = Share("aten.mm.default", 0.050, 64, 10**14, 10**11, "compute", "backward", "m 8192, n 14336, k 4096")
    return Estimate(
        model="tiny",
        mode="train",
        gpu="h100-sxm-80gb",
        num_gpus=1,
        sizes=(("batch", 1), ("seq", 8192)),
        precision="bf16-mixed",
        optimizer="adamw",
        recompute="none",
        runtime="eager",
        parameters=2_000_000_000,
        trainable_parameters=2_000_000_000,
        verdict="fits",
        memory=memory(),
        step_time_s=0.5,
        device_time_s=0.4,
        host_time_s=0.5,
        phase_time_s=(("forward", 0.15), ("backward", 0.3), ("optimizer", 0.05)),
        roofline_time_s=0.25,
        tokens_per_step=8192,
        tokens_per_s=16384.0,
        samples_per_s=2.0,
        flops=Flops(90 * 10**12, 180 * 10**12, 0),
        flops_noncausal=Flops(100 * 10**12, 200 * 10**12, 0),
        peak_flops_per_s=989e12,
        mfu=(
            Mfu("non-causal, without input embedding: 6(N - N_embedding) + 12 L H D S", 36.6e9, 0.6067),
            Mfu("causal: attention halved", 33e9, 0.5461),
        ),
        hfu=(Mfu("counted from the graph", 33e9, 0.5461),),
        by_kind=(norm, matmul),
        by_module=(Share("layers.*.mlp", 0.4, 32, 270 * 10**12, 10**12, "compute"),),
        by_bound=(Share("compute", 0.3, 225, 0, 0), Share("memory", 0.1, 65, 0, 0)),
        top_kernels=(kernel,),
        unpriced=(Unpriced("mylib.scan.default", 4, 3 * 2**20, 0.002),),
        guesses=("`mask.all()` taken as true",),
        assumptions=("the sum of the outputs stands in for a loss",),
        advice=("run under `--runtime compile`",),
        sources=("nvidia_h100_datasheet",),
    )


@pytest.fixture
def inspection() -> Inspection:
    """Two rows, as `inspect --depth 1` gives."""
    rows = (
        ModuleRow("", 1, 110, 2_000_000, 4_000_000, 3 * 2**20, 2**20),
        ModuleRow("layers.*", 2, 100, 1_500_000, 3_000_000, 2**20, 2**19),
    )
    return Inspection("tiny", "Tiny", "train", (("batch", 1), ("seq", 16)), 110, 100, rows)


@pytest.fixture
def run() -> MfuReport:
    """Llama-3.1-8B on 64 H100 at 6,667 tokens/s/GPU: 1e12 tokens at $2.69 a GPU-hour."""
    per_token = 6 * (8_030_261_248 - 525_336_576) + 12 * 32 * 32 * 128 * 8192
    rate = 6667.0
    return MfuReport(
        model="llama-3.1-8b",
        gpu="h100-sxm-80gb",
        num_gpus=64,
        precision="bf16-mixed",
        parameters=8_030_261_248,
        parameters_input_embedding=525_336_576,
        seq_len=8192,
        tokens_per_s_per_gpu=rate,
        peak_flops_per_s=989e12,
        mfu=(Mfu("non-causal, without input embedding", per_token, per_token * rate / 989e12),),
        tokens=10**12,
        price_per_gpu_hour=2.69,
    )
