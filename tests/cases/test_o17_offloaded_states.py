"""O17: what states need is not what training needs. A LLaMA of 6.805 B parameters under ZeRO 3 on 4 GPUs.

DeepSpeed's estimator says 29.01 GiB a GPU = (18 N / 4 + 4 largest) / 2^30, and 0.49 GiB with parameters and optimizer
offloaded: weights and gradients, 2 + 2 bytes, of the largest layer. Measured with offload: 14.3 GiB after the start,
20.8 GiB at step 2. Source: DeepSpeed issues 4527, 4093, 5102.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from torchperf import configs

GIB = 2**30
PARAMETERS = 6_805_262_336
LARGEST = 32_000 * 4096
NEED = ("--gpu", "a100-sxm-80gb", "--num-gpus", 4, "--zero", 3, "--seq-len", 2048)
STATES = ("parameters", "gradients", "optimizer")


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    """LLaMA-7B with an MLP wide enough for 6.805 B parameters; its largest layer, the embedding, has 131 M."""
    config = {**configs.load("llama-2-7b"), "intermediate_size": 11_178}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize(
    ("runtime", "width", "gib"), [("fsdp-eager", 16, 25.4), ("megatron-core", 18, 28.5), ("eager", 16, 25.4)]
)
def test_o17_states(priced, llama, runtime: str, width: int, gib: float) -> None:
    answer = priced(llama, *NEED, "--runtime", runtime)
    memory = answer["memory_bytes"]
    assert answer["parameters"] == PARAMETERS
    assert sum(answer["bytes_per_parameter"].values()) == width
    assert sum(memory[name] for name in STATES) / GIB == pytest.approx(gib, abs=0.05)
    assert sum(memory[name] for name in STATES) == width * PARAMETERS / 4
    assert memory["gathered"] >= 2 * LARGEST  # the un-sharded working set
    assert memory["device"] > sum(memory[name] for name in STATES) + memory["gathered"] + memory["activations"]


def test_o17_offloaded(priced, llama) -> None:
    """Next to nothing of the states is here, the layers at work are, and the need is activations and buffers."""
    answer = priced(llama, *NEED, "--runtime", "fsdp-eager", "--offload", "params+optimizer")
    memory = answer["memory_bytes"]
    assert (memory["gradients"], memory["optimizer"]) == (0, 0)
    assert 0 < memory["parameters"] <= 4 * LARGEST == pytest.approx(0.49 * GIB, rel=0.01)
    assert memory["host"] == 16 * PARAMETERS / 4
    assert 4 * LARGEST <= memory["gathered"] + memory["temporary"] < 4 * GIB
    assert memory["activations"] > 20 * 4 * LARGEST
    assert 14.3 < memory["device"] / GIB < 20.8


def test_o17_the_report(command, llama) -> None:
    """It tells the bytes of a parameter, and never 0.49 GiB as what the device needs."""
    result = command("estimate", llama, *NEED, "--runtime", "fsdp-eager", "--offload", "params+optimizer")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    (verdict,) = (line for line in lines if line.startswith("fits: "))
    assert float(verdict.split()[1]) > 14.3
    width = next(i for i, line in enumerate(lines) if line.startswith("bytes per parameter"))
    assert lines[width].split()[-1] == "total"
    assert lines[width + 1].split() == ["4", "4", "4", "4", "16"]
    assert any(line.startswith("activations ") for line in lines)
    assert "25.35 GiB a GPU in the memory of the host" in lines
