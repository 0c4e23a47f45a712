"""`torchperf.estimate_inference`: a name, a live model and captures by mode answer alike."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import torchperf

ASKED = {"gpu": "h100-sxm-80gb", "input_len": 100, "output_len": 20}


@pytest.fixture(scope="module")
def llama() -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=512, hidden_size=64, intermediate_size=172, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2,
    )  # fmt: skip
    with torch.device("meta"):
        return LlamaForCausalLM(config)


def test_a_live_model_and_its_captures(llama: LlamaForCausalLM) -> None:
    modes = {mode: torchperf.capture(llama, mode=mode) for mode in ("prefill", "decode")}
    live = torchperf.estimate_inference(llama, batch=4, **ASKED)
    assert live.kv_bytes_per_token == 2 * 3 * 2 * 16 * 2  # keys and values, layers, heads, head_dim, bf16
    assert live.served == torchperf.estimate_inference(modes, batch=4, **ASKED).served
    assert live.served.latency == pytest.approx(live.served.ttft + 19 * live.served.tpot)


def test_many_requests_at_a_time(llama: LlamaForCausalLM) -> None:
    few, many = (torchperf.estimate_inference(llama, concurrency=n, **ASKED) for n in (2, 64))
    assert many.served.tokens_per_s > few.served.tokens_per_s
    assert many.burst is not None
    assert many.burst.requests == 64


def test_a_mode_that_is_missing_is_named(llama: LlamaForCausalLM) -> None:
    modes = {"prefill": torchperf.capture(llama, mode="prefill")}
    with pytest.raises(torchperf.TorchperfError, match="no capture of mode `decode`"):
        torchperf.estimate_inference(modes, **ASKED)


def test_estimate_sends_to_estimate_inference() -> None:
    with pytest.raises(torchperf.TorchperfError) as caught:
        torchperf.estimate("gpt2", gpu="h100-sxm-80gb", mode="inference")
    assert "estimate_inference" in str(caught.value)
