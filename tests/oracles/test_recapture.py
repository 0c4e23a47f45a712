"""The model run again with one rank's weights and Megatron's collectives written by hand: what it sends is ours."""

from __future__ import annotations

from collections import Counter
from types import ModuleType

import pytest
import torch

import torchperf
from torchperf.frontend.meta_device import everything_on_meta
from torchperf.frontend.patches import capture_patches
from torchperf.graph.graph import Graph
from torchperf.partition.tensor_parallel import tensor_parallel

BATCH, SEQ = 2, 24
RANKS = (2, 4, 8)


@pytest.fixture(scope="module")
def whole(sharded: ModuleType) -> dict[str, Graph]:
    """Each model as it is, captured once."""
    found = {}
    for kind in sharded.KINDS:
        capture = torchperf.capture(sharded.Logits(sharded.model(kind)), torch.zeros(BATCH, SEQ, dtype=torch.long))
        found[kind] = capture.bind()
    return found


def flops(products: Counter[tuple[str, int, int, int]]) -> int:
    return sum(2 * m * k * n * count for (_, m, k, n), count in products.items())


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("kind", ["llama", "gpt2", "mixtral"])
def test_megatron_by_hand(
    whole: dict[str, Graph], parallel: ModuleType, sharded: ModuleType, kind: str, ranks: int
) -> None:
    """Collectives (phase, kind, bytes) and local products, one by one; what is split is 1 / ranks of the whole."""
    graph = whole[kind]
    plan = {f"inside.{pattern}": style for pattern, style in sharded.PLANS[kind].items()}
    ours = tensor_parallel(graph, ranks, plan=plan, norm_gradients=False).program
    with parallel.world(ranks), capture_patches(), everything_on_meta():
        module = sharded.sharded(kind, ranks).train()
        with parallel.Recorder() as theirs:
            module(input_ids=torch.zeros(BATCH, SEQ, dtype=torch.long, device="meta")).logits.sum().backward()
    assert parallel.sent_by(ours) == Counter(theirs.sent)
    local = parallel.products_of(ours)
    assert local == Counter(theirs.products)
    router = {p for p in local if kind == "mixtral" and sharded.EXPERTS in p[1:]}  # every rank runs it whole
    split = Counter({p: n for p, n in local.items() if p not in router})
    before = Counter({p: n for p, n in parallel.products_of(graph).items() if p not in router})
    assert flops(split) * ranks == flops(before)
    assert flops(split) > 0
