"""O04: a tied embedding is one parameter, and its head is a matmul all the same.

Source: trl issue 6708 and pull request 6731 (the tied head was counted as 0), torchtitan pull request 3225 (it was
subtracted twice). Llama-3.2-1B; the untied twin has one more matrix of 128256 x 2048.
"""

from __future__ import annotations

import pytest

import torchperf
from torchperf import configs
from torchperf.graph.graph import Capture


@pytest.fixture(scope="module")
def untied() -> Capture:
    from torchperf.frontend.capture import capture
    from torchperf.frontend.hf import from_config

    contents = {**configs.load("llama-3.2-1b"), "tie_word_embeddings": False}
    subject = from_config(contents, "untied")
    subject.fixed = "one size is enough here"
    return Capture((capture(subject, "train", {"batch": 1, "seq": 64}),))


def test_o04(captured, untied: Capture) -> None:
    seq = 64
    tied = torchperf.inspect(captured("llama-3.2-1b"), seq_len=seq)
    assert tied.parameters == 1_235_814_400
    rows = {row.module: row for row in tied.rows}
    assert rows["lm_head"].flops_forward == 525_336_576 * seq
    assert rows["model.embed_tokens"].flops_forward == 0

    apart = torchperf.inspect(untied, seq_len=seq)
    assert apart.parameters == 1_498_482_688
    apart_rows = {row.module: row for row in apart.rows}
    for module in ("", "lm_head", "model.layers.*"):
        assert rows[module].flops_forward == apart_rows[module].flops_forward
        assert rows[module].flops_backward == apart_rows[module].flops_backward


def test_o04_the_embedding_of_the_formula(measured, row) -> None:
    """6 N without the input embedding takes nothing away where the head reads that matrix too."""
    answer = measured("llama-3.2-1b", "--gpu", "h100-sxm-80gb", "--seq-len", 4096, "--tokens-per-s-per-gpu", 1000)
    assert answer["parameters_input_embedding"] == 0
    bare, with_embedding = row(answer, "non-causal, without"), row(answer, "non-causal, with input")
    assert bare["flops_per_token"] == with_embedding["flops_per_token"]
