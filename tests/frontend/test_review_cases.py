"""Models that once gave a wrong number or none: each as small as it can be."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import torchperf
from torchperf.graph.errors import TorchperfError

GPU = {"gpu": "a100-sxm-80gb"}


def test_a_model_that_refuses_a_batch_of_one() -> None:
    """BatchNorm1d has no statistics of one sample: the size that was given still answers."""
    net = nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.Linear(16, 4))
    capture = torchperf.capture(net, torch.randn(32, 16))
    assert torchperf.estimate(capture, **GPU).verdict == "fits"


def test_a_model_of_one_batch_only() -> None:
    class Fixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up = nn.Linear(64, 64)
            self.register_buffer("mask", torch.zeros(8, 64))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.up(x) + self.mask

    answer = torchperf.estimate(torchperf.capture(Fixed(), torch.randn(8, 64)), **GPU)
    assert any("these sizes only" in line for line in answer.assumptions)


@pytest.mark.parametrize("precision", ["fp32", "bf16-mixed"])
def test_the_precision_is_chosen_whatever_the_module_was(precision: str) -> None:
    """A module in fp16 is priced like its twin in fp32."""
    answers = []
    for half in (False, True):
        net, x = nn.Linear(512, 512), torch.randn(64, 512)
        capture = torchperf.capture(net.half() if half else net, x.half() if half else x)
        answers.append(torchperf.estimate(capture, precision=precision, **GPU))
    assert answers[0].memory == answers[1].memory
    assert answers[0].step_time_s == answers[1].step_time_s


def test_the_environment_is_part_of_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that reads a variable is captured again when the variable changes."""
    path = tmp_path / "model.py"
    path.write_text(
        "import os, torch\nfrom torch import nn\nN = int(os.environ['NUM_LAYERS_OF_TEST'])\n"
        "def build_model(): return nn.Sequential(*[nn.Linear(8, 8) for _ in range(N)])\n"
        "def get_inputs(): return torch.randn(2, 8)\n"
    )
    found = []
    for layers in ("2", "6", "2"):
        monkeypatch.setenv("NUM_LAYERS_OF_TEST", layers)
        found.append(torchperf.estimate(str(path), **GPU).parameters)
    assert found == [144, 432, 144]


def test_a_parameter_that_training_never_reaches_has_no_state() -> None:
    class Partly(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.idle = nn.Linear(64, 64), nn.Linear(64, 64)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.used(x)

    memory = torchperf.estimate(torchperf.capture(Partly(), torch.randn(4, 64)), **GPU).memory
    assert memory.parameters == 2 * (64 * 64 + 64) * 2
    assert memory.gradients == (64 * 64 + 64) * 2
    assert memory.optimizer == (64 * 64 + 64) * 12


def test_an_indexed_table_is_no_expert(captured: Callable[..., object]) -> None:
    class Table(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.out = nn.Parameter(torch.randn(1000, 32)), nn.Linear(32, 1000)
            self.embed = nn.Embedding(1000, 32)

        def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
            return self.out(self.table[input_ids] + self.embed(input_ids)).float().mean()

    report = torchperf.mfu(torchperf.capture(Table()), gpu="a100-sxm-80gb", tokens_per_s_per_gpu=1.0)
    assert report.assumptions == ()
    assert report.parameters_input_embedding == 2 * 32_000


def test_fp32_keeps_what_an_alias_still_needs() -> None:
    """`u.float()` is u itself in fp32: it lives until the last use of either."""

    class Reads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(1024, 1024, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            u = self.a(x)
            scale = u.float().mean()
            return (u * scale).sum()

    x = torch.randn(4096, 1024)
    memory = torchperf.estimate(torchperf.capture(Reads(), x), precision="fp32", **GPU).memory
    assert memory.activations + memory.temporary >= 2 * 4096 * 1024 * 4  # x and u together


def test_slices_that_are_written_are_all_written() -> None:
    """Four stripes of one tensor under `compile` are the whole tensor."""

    class Stripes(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out = torch.empty(256, 4096, dtype=x.dtype, device=x.device)
            for i in range(4):
                out[:, i * 1024 : (i + 1) * 1024] = x * (i + 1)
            return out

    capture = torchperf.capture(Stripes(), torch.randn(256, 1024), mode="forward")
    for runtime in ("eager", "compile"):
        answer = torchperf.estimate(capture, runtime=runtime, mode="forward", **GPU)
        assert sum(share.nbytes for share in answer.by_kind) >= 256 * 4096 * 2


def test_a_limit_leaves_what_lies_below_it_free(captured: Callable[..., object]) -> None:
    capture = torchperf.capture("bert-base")
    for batch, seq in ((1, 512), (8, 512), (1, 128), (8, 128)):
        assert torchperf.estimate(capture, micro_batch=batch, seq_len=seq, **GPU).tokens_per_step == batch * seq


@pytest.mark.parametrize("model", [42, None, 3.5])
def test_no_model_at_all(model: object) -> None:
    with pytest.raises(TorchperfError, match="a model is a name"):
        torchperf.capture(model)
    with pytest.raises(TorchperfError, match="a model is a name"):
        torchperf.estimate(model, **GPU)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "words", [{"num_gpus": 0}, {"mode": "trainn"}, {"optimizer": "adamm", "mode": "forward"}, {"precision": "fp7"}]
)
def test_words_that_are_not_known(words: dict[str, object]) -> None:
    with pytest.raises(TorchperfError):
        torchperf.estimate("gpt2", **GPU, **words)  # type: ignore[arg-type]


def test_borrowed_constants_are_told() -> None:
    assert any("without rows of `tpu-v4`" in line for line in torchperf.estimate("gpt2", gpu="tpu-v4").assumptions)
