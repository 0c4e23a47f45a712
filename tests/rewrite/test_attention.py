"""Attention as one kernel, or as the kernels it stands for."""

from __future__ import annotations

import pytest

import torchperf

GPU = "h100-sxm-80gb"
MODELS = ("llama", "gpt2")


def estimates(capture, **how: object) -> dict[str, torchperf.pipeline.Estimate]:
    return {form: torchperf.estimate(capture, gpu=GPU, attention=form, **how) for form in ("flash", "unfused")}


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(("batch", "seq"), [(1, 128), (3, 200)])
def test_same_flops_non_causal(shallow, model: str, batch: int, seq: int) -> None:
    """Q K^T, P V and their four backward matmuls, grouped queries or not."""
    both = estimates(shallow(model), micro_batch=batch, seq_len=seq)
    assert both["unfused"].flops_noncausal == both["flash"].flops_noncausal


@pytest.mark.parametrize("model", MODELS)
def test_unfused_computes_the_whole_square(shallow, model: str) -> None:
    """A matmul knows no mask: what it runs is the non-causal count."""
    unfused = estimates(shallow(model), seq_len=128)["unfused"]
    assert unfused.flops == unfused.flops_noncausal


@pytest.mark.parametrize("model", MODELS)
def test_unfused_keeps_and_moves_more(shallow, model: str) -> None:
    both = estimates(shallow(model), seq_len=512)
    assert both["unfused"].memory.peak > both["flash"].memory.peak
    assert both["unfused"].roofline_time_s > both["flash"].roofline_time_s


@pytest.mark.parametrize(("dropout", "per_score"), [(0.1, 5), (0.0, 2)])
def test_scores_kept_for_backward(shallow, dropout: float, per_score: int) -> None:
    """Softmax's output, dropout's byte and what it left: 5 bytes a score, else 2. Source: arXiv 2205.05198, 4.1."""
    batch, seq, heads = 2, 256, 4
    kept = {
        form: next(
            row.activation_bytes / row.calls
            for row in torchperf.inspect(
                shallow("gpt2", dropout=dropout), micro_batch=batch, seq_len=seq, attention=form
            ).rows
            if row.module == "transformer.h.*"
        )
        for form in ("flash", "unfused")
    }
    scores, logsumexp = batch * heads * seq**2, 4 * batch * heads * seq
    assert kept["unfused"] - kept["flash"] == per_score * scores - logsumexp


@pytest.mark.parametrize("model", MODELS)
def test_mfu_keeps_its_meaning(shallow, model: str) -> None:
    """6 N + 12 L H D S is of the model: how attention runs does not change it."""
    both = estimates(shallow(model), seq_len=256)
    for flash, unfused in list(zip(both["flash"].mfu, both["unfused"].mfu, strict=True))[:3]:
        assert flash.convention == unfused.convention
        assert flash.flops_per_token == unfused.flops_per_token


def test_auto_is_the_runtime_s(shallow) -> None:
    auto, flash = (
        torchperf.estimate(shallow("llama"), gpu=GPU, seq_len=128, attention=form) for form in ("auto", "flash")
    )
    assert auto == flash


def test_an_unknown_form(shallow) -> None:
    with pytest.raises(torchperf.TorchperfError, match="unknown form of attention `paged`"):
        torchperf.estimate(shallow("llama"), gpu=GPU, seq_len=128, attention="paged")
