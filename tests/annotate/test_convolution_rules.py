"""Convolutions: counts by hand, and against torch.utils.flop_counter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

from torchperf.annotate import work
from torchperf.graph.op import Op

Make = Callable[..., Op]
Record = Callable[[Callable[[], Any]], list[Op]]


def meta(*shape: int) -> torch.Tensor:
    return torch.empty(shape, device="meta", requires_grad=True)


def test_first_layer_of_resnet(make: Make) -> None:
    """7x7, stride 2, 3 to 64 channels on 224x224: 2 * 112 * 112 * 64 * 3 * 49."""
    found = work(make("aten.convolution.default", {"input": (1, 3, 224, 224), "weight": (64, 3, 7, 7)},
                      [(1, 64, 112, 112)], groups=1, transposed=False))  # fmt: skip
    assert found.flops == 236_027_904
    assert dict(found.dims) == {"batch": 1, "m": 112 * 112, "n": 64, "k": 147}
    assert (found.kind, found.engine) == ("convolution", "matrix")


def test_depthwise(make: Make) -> None:
    operands = {"input": (2, 8, 10, 10), "weight": (8, 1, 3, 3)}
    found = work(make("aten.convolution.default", operands, [(2, 8, 10, 10)], groups=8))
    assert found.flops == 2 * 2 * 100 * 8 * 9
    assert dict(found.dims) == {"batch": 8, "m": 200, "n": 1, "k": 9}


def test_transposed_with_groups(make: Make) -> None:
    """Each of 2x5x5 input positions meets 4 input channels x (6/2) output channels x 2x2 kernel."""
    operands = {"input": (2, 4, 5, 5), "weight": (4, 3, 2, 2)}
    found = work(make("aten.convolution.default", operands, [(2, 6, 10, 10)], groups=2, transposed=True))
    assert found.flops == 2 * 2 * 25 * 4 * 3 * 4
    assert dict(found.dims) == {"batch": 2, "m": 50, "n": 12, "k": 2}


@pytest.mark.parametrize("name", ["aten._slow_conv2d_forward.default", "aten.mkldnn_convolution.default"])
def test_other_names(name: str, make: Make) -> None:
    found = work(make(name, {"self": (2, 3, 8, 8), "weight": (4, 3, 3, 3)}, [(2, 4, 6, 6)]))
    assert found.flops == 2 * 2 * 36 * 4 * 27


LAYERS: list[Callable[[], torch.Tensor]] = [
    lambda: F.conv1d(meta(2, 4, 16), meta(6, 4, 3), meta(6), stride=2, padding=1),
    lambda: F.conv2d(meta(2, 4, 16, 12), meta(6, 4, 3, 5), meta(6), stride=(2, 1), dilation=2, padding=4),
    lambda: F.conv3d(meta(2, 4, 6, 6, 6), meta(6, 4, 3, 3, 3)),
    lambda: F.conv_transpose1d(meta(2, 4, 16), meta(4, 6, 3), stride=2),
    lambda: F.conv_transpose2d(meta(2, 4, 8, 8), meta(4, 6, 3, 3), stride=2, output_padding=1),
]


@pytest.mark.parametrize("layer", LAYERS)
def test_agrees_with_the_flop_counter(layer: Callable[[], torch.Tensor], record: Record) -> None:
    """Forward, and a backward that asks for both gradients."""
    with FlopCounterMode(display=False) as counter:
        ops = record(lambda: layer().sum().backward())
    works = [work(op) for op in ops]
    assert sum(w.flops for w in works if w.kind == "convolution") == counter.get_total_flops() > 0
    assert all(w.known for w in works)


def test_backward_counts_what_is_asked_for(record: Record) -> None:
    weight = meta(6, 4, 3, 3)
    image = torch.empty(2, 4, 8, 8, device="meta")
    gradient = torch.empty(2, 6, 6, 6, device="meta")
    ops = record(lambda: F.conv2d(image, weight).backward(gradient))
    forward, backward = (w for w in map(work, ops) if w.kind == "convolution")
    assert forward.flops == backward.flops == 2 * 2 * 36 * 6 * 36
    assert backward.bytes_read == 4 * (2 * 6 * 36 + 2 * 4 * 64)  # dy and x; the weight is not needed
