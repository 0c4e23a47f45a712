"""Once for real: two processes, gloo, real numbers. PyTorch sends what we say, and computes what the whole would."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.distributed as dist

import torchperf
from torchperf.partition.tensor_parallel import tensor_parallel

RANKS, BATCH, SEQ = 2, 2, 16
pytestmark = pytest.mark.skipif(not dist.is_gloo_available(), reason="this PyTorch is built without gloo")


def run(kind: str, folder: Path) -> dict[str, Any]:
    """What rank 0 recorded."""
    script, target = Path(__file__).with_name("gloo_ranks.py"), folder / f"{kind}.json"
    done = subprocess.run(
        [sys.executable, str(script), kind, str(target)],
        capture_output=True, text=True, timeout=600, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(target.read_text())
    found["sent"] = Counter(map(tuple, found["sent"]))
    return found


def test_two_ranks_of_tensor_and_sequence_parallelism(parallel: ModuleType, tmp_path: Path) -> None:
    found = run("tp", tmp_path)
    with torch.device("meta"):
        model = parallel.Llama()
    graph = torchperf.capture(model, torch.zeros(BATCH, SEQ, dtype=torch.long)).bind()
    ours = parallel.sent_by(
        tensor_parallel(
            graph, RANKS, plan=parallel.PLAN, sequence=True, regather=False, norm_gradients=False
        ).program
    )  # fmt: skip
    # the graph is captured in bf16, this run is in fp32: the same elements, of twice the bytes
    assert Counter({(phase, kind, 2 * nbytes): n for (phase, kind, nbytes), n in ours.items()}) == found["sent"]
    kinds = Counter({kind: sum(n for (_, k, _), n in found["sent"].items() if k == kind) for _, kind, _ in ours})
    assert found["counts"] == {
        "all_gather_into_tensor": kinds["all_gather"],
        "reduce_scatter_tensor": kinds["reduce_scatter"],
    }
    assert found["error"] < 1e-5


def test_two_ranks_of_fsdp(parallel: ModuleType, tmp_path: Path) -> None:
    found = run("fsdp", tmp_path)
    with torch.device("meta"):
        model = parallel.Llama()
    assert parallel.sent_by_fsdp(model, RANKS) == found["sent"]
    assert sum(found["counts"].values()) == sum(found["sent"].values())
    assert found["error"] < 1e-5
