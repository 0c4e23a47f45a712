"""Two real processes over gloo: `python gloo_ranks.py tp|fsdp FILE` writes what rank 0 sent, as JSON."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import warnings
from pathlib import Path

import parallel
import torch
import torch.distributed as dist
from torch.distributed.tensor.debug import CommDebugMode

RANKS, BATCH, SEQ = 2, 2, 16


def run(rank: int, kind: str, store: str, target: str) -> None:
    """One rank: forward and backward of a tiny Llama, real numbers."""
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS)
    try:
        model = parallel.Llama()
        ids = torch.randint(0, 96, (BATCH, SEQ), generator=torch.Generator().manual_seed(1))
        expected = model(ids).detach()
        if kind == "tp":
            model = parallel.parallelized(model, RANKS, sequence=True)
        else:
            parallel.fully_sharded(model, RANKS)
        counts = CommDebugMode()
        with counts, parallel.Recorder() as recorder:
            out = model(ids)
            out.sum().backward()
        mine = expected.chunk(RANKS, -1)[rank] if kind == "tp" else expected
        found = {
            "sent": recorder.sent,
            "counts": {str(op).split(".")[-1]: n for op, n in counts.get_comm_counts().items()},
            "error": (out.detach() - mine).abs().max().item(),
        }
    finally:
        dist.destroy_process_group()
    if rank == 0:
        Path(target).write_text(json.dumps(found))


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(run, (sys.argv[1], f"{folder}/store", sys.argv[2]), nprocs=RANKS)
