"""FSDP2's `fully_shard` on a process group without peers: gathered twice and scattered once a layer, the root once."""

from __future__ import annotations

from collections import Counter
from types import ModuleType

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

LAYERS = 4


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("width", [64, 96])
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")
def test_collectives_a_unit(parallel: ModuleType, ranks: int, width: int) -> None:
    with torch.device("meta"):
        whole = parallel.Llama(width=width)
    with parallel.world(ranks):
        mesh = parallel.mesh_of(ranks)  # made before the mode: it counts real ranks
        with FakeTensorMode(allow_non_fake_inputs=True):
            model = parallel.fully_sharded(parallel.Llama(width=width), ranks, mesh)
            with parallel.Recorder(fake=True) as theirs:
                model(torch.zeros(2, 16, dtype=torch.long)).sum().backward()
    sent = Counter(theirs.sent)
    assert sent == parallel.sent_by_fsdp(whole, ranks)
    assert sum(sent.values()) == 3 * LAYERS + 2


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")
def test_rows_that_do_not_divide_are_padded(parallel: ModuleType) -> None:
    """A norm's 68 and 100 rows over 8 ranks: each rank holds ceil(n / 8) of them."""
    sizes = {"width": 68, "heads": 17, "kv_heads": 17, "ffn": 100, "vocab": 90}
    with torch.device("meta"):
        whole = parallel.Llama(**sizes)
    with parallel.world(8):
        mesh = parallel.mesh_of(8)
        with FakeTensorMode(allow_non_fake_inputs=True):
            model = parallel.fully_sharded(parallel.Llama(**sizes), 8, mesh)
            with parallel.Recorder(fake=True) as theirs:
                model(torch.zeros(2, 16, dtype=torch.long)).sum().backward()
    assert Counter(theirs.sent) == parallel.sent_by_fsdp(whole, 8)
    plain = 4 * sum(p.numel() for p in whole.layers[0].parameters())
    assert ("forward", "all_gather", plain) not in Counter(theirs.sent)
