"""A fused kernel is named the same in every run: hashes of strings change from one to the next."""

from __future__ import annotations

import itertools

from torchperf.fuse.chains import fused
from torchperf.graph.op import Op


def test_a_kernel_of_two_modules_alike_is_of_the_first() -> None:
    for modules in itertools.permutations(("mlp", "mlp.act_fn", "self_attn.q_proj", "self_attn.k_proj")):
        members = [Op("aten.add.Tensor", "forward", module, (), (), (), (), ()) for module in modules]
        assert fused(members, lambda slot: True).module == modules[0]
