"""The precision of a run: bytes of what is 16 bits wide double in fp32, FLOPs stay, casts go."""

from __future__ import annotations

import pytest

import torchperf
from torchperf.graph.graph import Graph
from torchperf.hardware import load_runtime
from torchperf.pipeline import lower

GPU = "h100-sxm-80gb"


def casts(graph: Graph) -> int:
    """Ops that change a dtype between floats."""
    floats = {"fp32", "bf16", "fp16", "tf32"}
    return sum(
        count
        for op, count in graph.ops()
        if op.name.startswith("aten._to_copy") and {op.inputs[0].dtype, op.outputs[0].dtype} <= floats
    )


@pytest.mark.parametrize("model", ["llama", "gpt2"])
def test_fp32_doubles_parameter_bytes(shallow, model: str) -> None:
    half, full = (torchperf.estimate(shallow(model), gpu=GPU, seq_len=128, precision=p) for p in ("bf16-mixed", "fp32"))
    assert full.parameters == half.parameters
    assert full.memory.parameters == 2 * half.memory.parameters == 4 * full.parameters
    assert full.memory.gradients == 2 * half.memory.gradients
    assert full.flops == half.flops
    assert full.flops_noncausal == half.flops_noncausal
    assert full.unpriced == half.unpriced == ()


@pytest.mark.parametrize("model", ["llama", "gpt2"])
@pytest.mark.parametrize("precision", ["fp32", "tf32"])
def test_fp32_has_no_casts(shallow, model: str, precision: str) -> None:
    """Where all is fp32, RMSNorm's and the loss's copies to fp32 are the tensors themselves."""
    graph = shallow(model).bind(batch=2, seq=128)
    runtime = load_runtime("eager")
    assert casts(lower(graph, "bf16-mixed", None, "none", "auto", runtime)) > 0
    assert casts(lower(graph, precision, None, "none", "auto", runtime)) == 0


def test_fp16_is_bf16_of_another_name(shallow) -> None:
    """Same bytes, same FLOPs, same time on a device with one peak for both."""
    bf16, fp16 = (
        torchperf.estimate(shallow("llama"), gpu=GPU, seq_len=128, precision=p) for p in ("bf16-mixed", "fp16-mixed")
    )
    assert bf16.memory.peak == fp16.memory.peak
    assert bf16.flops == fp16.flops
    assert bf16.step_time_s == fp16.step_time_s


@pytest.mark.parametrize(
    ("precision", "bytes_per_parameter"),
    [("bf16-mixed", 16), ("fp16-mixed", 16), ("bf16", 8), ("fp32", 16), ("tf32", 16)],
)
def test_states_of_adamw(shallow, precision: str, bytes_per_parameter: int) -> None:
    """Weights, gradients, master weights and two moments: 2+2+4+4+4, 2+2+2+2, 4+4+4+4. Source: arXiv 1910.02054."""
    m = torchperf.estimate(shallow("llama"), gpu=GPU, seq_len=128, precision=precision)
    states = m.memory.parameters + m.memory.gradients + m.memory.optimizer
    assert states == bytes_per_parameter * m.parameters
    assert sum(per for _, per in m.memory.bytes_per_parameter) == bytes_per_parameter


def test_a_module_in_fp32_is_the_same_as_in_bf16() -> None:
    """What a live module happens to hold does not matter: the precision asked for does."""
    import torch
    from torch import nn

    def build(dtype: torch.dtype) -> nn.Module:
        with torch.device("meta"):
            return nn.Sequential(nn.Linear(16, 24), nn.LayerNorm(24), nn.Linear(24, 16)).to(dtype)

    answers = [
        torchperf.estimate(torchperf.capture(build(dtype), torch.empty(4, 16)), gpu=GPU)
        for dtype in (torch.float32, torch.bfloat16)
    ]
    assert answers[0] == answers[1]
