"""O21: logits and the loss's fp32 copy are a line of their own, and a chunked loss is suggested.

Source: ms-swift issue 6966, trl issue 3678, Automodel issue 3907, SkyRL pull request 1610 (42 GB at 65k x 128k).
"""

from __future__ import annotations

import pytest

import torchperf
from torchperf import configs
from torchperf.graph.graph import Capture

GIB = 2**30


@pytest.fixture(scope="module")
def qwen2() -> Capture:
    """Two layers of Qwen2.5, vocabulary 151,936: the head is what counts."""
    from torchperf.frontend.capture import capture
    from torchperf.frontend.hf import from_config

    contents = {
        **configs.load("qwen2.5-7b"), "num_hidden_layers": 2, "max_window_layers": 2, "layer_types": None,
        "vocab_size": 151_936, "max_position_embeddings": 131_072,
    }  # fmt: skip
    subject = from_config(contents, "qwen2.5, 2 layers")
    return Capture((capture(subject, "train", {"batch": 1, "seq": 32_768}),))


def test_o21_vocabulary_of_qwen(qwen2: Capture) -> None:
    """bf16 logits 9.27 GiB, one fp32 copy 18.55 GiB; a causal loss holds both of them when backward starts."""
    logits = 2 * 151_936 * 32_768
    assert logits / GIB == pytest.approx(9.27, abs=0.01)
    assert 2 * logits / GIB == pytest.approx(18.55, abs=0.01)
    memory = torchperf.estimate(qwen2, gpu="b200-sxm-180gb", seq_len=32_768).memory
    assert memory.logits_loss == pytest.approx(logits + 2 * logits, rel=1e-3)
    assert memory.peak >= 49e9  # the user saw one request of 49 GB


def test_o21_vocabulary_of_llama_3(captured) -> None:
    """Vocabulary 128,256 at 8,192 tokens: one fp32 copy is 4.20 GB (3.91 GiB)."""
    copy = 4 * 128_256 * 8192
    assert (copy / 1e9, copy / GIB) == (pytest.approx(4.20, abs=0.01), pytest.approx(3.91, abs=0.01))
    memory = torchperf.estimate(captured("llama-3.1-8b"), gpu="h200", seq_len=8192).memory
    assert memory.logits_loss == pytest.approx(1.5 * copy, rel=1e-3)


def test_o21_the_report(command) -> None:
    """The line stands in the table, and the advice beside it."""
    result = command("estimate", "llama-3.2-1b", "--gpu", "h100-sxm-80gb", "--seq-len", 8192)
    assert result.exit_code == 0
    (line,) = (text for text in result.stdout.splitlines() if text.startswith("logits and loss"))
    assert line.split()[3] == f"{6 * 128_256 * 8192 / GIB:.2f}"
    assert "a fused or chunked cross-entropy never holds them whole" in " ".join(result.stdout.split())
