"""DTensor's `parallelize_module` with sequence parallelism: what it sends and multiplies on one rank is ours.

DTensor keeps the input that it gathered for dW, and leaves the norms' gradients Partial: two switches of ours.
"""

from __future__ import annotations

from collections import Counter
from types import ModuleType
from typing import Any

import pytest
import torch

import torchperf
from torchperf.graph.graph import Graph
from torchperf.partition.tensor_parallel import TensorParallel, tensor_parallel
from torchperf.pipeline import annotated
from torchperf.schedule.memory import saved

BATCH, SEQ = 2, 32


@pytest.fixture(scope="module")
def graph(parallel: ModuleType) -> Graph:
    with torch.device("meta"):
        model = parallel.Llama()
    return torchperf.capture(model, lambda batch, seq: torch.zeros(batch, seq, dtype=torch.long)).bind(
        batch=BATCH, seq=SEQ
    )


def ours(graph: Graph, parallel: ModuleType, ranks: int, **flags: Any) -> TensorParallel:
    return tensor_parallel(graph, ranks, plan=parallel.PLAN, **flags)


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("sequence", [True, False])
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")
def test_collectives_and_local_products(graph: Graph, parallel: ModuleType, sequence: bool, ranks: int) -> None:
    program = ours(graph, parallel, ranks, sequence=sequence, regather=False, norm_gradients=False).program
    with parallel.world(ranks):
        model = parallel.parallelized(parallel.Llama().bfloat16(), ranks, sequence=sequence)
        with parallel.Recorder() as theirs:
            model(torch.zeros(BATCH, SEQ, dtype=torch.long)).sum().backward()
    assert parallel.sent_by(program) == Counter(theirs.sent)
    assert parallel.products_of(program) == Counter(theirs.products)
    assert len(theirs.sent) == (4 if sequence else 2) * (2 * len(model.layers) + 1)
    assert {(op.attr("axis"), op.attr("ranks")) for op, _ in program.ops() if op.find("self") and op.attr("role")} == {
        ("tp", ranks)
    }


@pytest.mark.parametrize("ranks", [2, 8])
def test_each_switch_takes_away_its_own_collectives_alone(graph: Graph, parallel: ModuleType, ranks: int) -> None:
    """Megatron's: X gathered again for dW of q, k, v together, of gate and up, of the head; norms' gradients summed."""
    layers = 4
    both = parallel.sent_by(ours(graph, parallel, ranks, sequence=True).program)
    kept = parallel.sent_by(ours(graph, parallel, ranks, sequence=True, regather=False).program)
    partial = parallel.sent_by(ours(graph, parallel, ranks, sequence=True, norm_gradients=False).program)
    activation = BATCH * SEQ * 64 * 2
    assert both - kept == Counter({("backward", "all_gather", activation): 2 * layers + 1})
    assert both - partial == Counter({("backward", "all_reduce", 64 * 2): 2 * layers + 1})
    assert not kept - both
    assert not partial - both


def test_what_is_not_gathered_again_is_kept(graph: Graph, parallel: ModuleType) -> None:
    """Backward reads the storage that forward gathered; more is held between the two."""
    held = {}
    for regather in (True, False):
        program = ours(graph, parallel, 4, sequence=True, regather=regather).program
        held[regather] = sum(life.nbytes for life in saved(program, annotated(program)).values())
    gathered = BATCH * SEQ * 64 * 2
    shards = gathered // 4
    assert held[False] - held[True] == (2 * 4 + 1) * gathered - (2 * 4 + 1) * shards
