"""Factors of windows, triangular solves and written slices: every op is known, and what is free stays free."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import torchperf  # noqa: E402
from torchperf.partition.algebra import leaves  # noqa: E402
from torchperf.partition.factors import Factors, propagate  # noqa: E402


class Windows(nn.Module):
    """A convolution as windows of the sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.kernel = nn.Linear(32, 48, bias=False), nn.Parameter(torch.ones(48, 4))

    def forward(self, x: Any) -> Any:
        x = nn.functional.pad(self.up(x).transpose(1, 2), (3, 0)).unfold(-1, 4, 1)
        return (x * self.kernel[:, None]).sum(-1)


class Solve(nn.Module):
    """A triangular system whose columns are features."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.keys = nn.Linear(32, 48, bias=False), nn.Linear(32, 8, bias=False)

    def forward(self, x: Any) -> Any:
        keys = self.keys(x)
        lower = (keys @ keys.transpose(-1, -2)).tril()
        return torch.linalg.solve_triangular(lower, self.up(x), upper=False)


class Written(nn.Module):
    """Chunks written one by one: the gradient reads them by their strides."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(32, 48, bias=False)

    def forward(self, x: Any) -> Any:
        chunks = self.up(x).view(x.shape[0], 2, -1, 48)
        out = torch.zeros_like(chunks)
        for i in range(2):
            out[:, i] = chunks[:, i] * 2
        return out


def factors_of(module: nn.Module) -> Factors:
    captured = torchperf.capture(module, lambda batch, seq: torch.ones(batch, 8, 32), micro_batch=2)
    return propagate(captured.bind(**{name: 2 for name, *_ in captured.graphs[0].facts.ranges}))


@pytest.mark.parametrize("kind", [Windows, Solve, Written])
def test_every_op_is_known_and_features_stay_one_leaf(kind: type[nn.Module]) -> None:
    factors = factors_of(kind())
    assert not factors.unresolved
    assert not factors.clashes
    assert [leaf.size for leaf in leaves(factors.parameters["up.weight"][0])] == [48]


def test_windows_leave_the_channels_free() -> None:
    factors = factors_of(Windows())
    (channels,) = leaves(factors.parameters["up.weight"][0])
    assert channels in leaves(factors.parameters["kernel"][0])
    whole = {id(leaf) for records in factors.blocks for op in records for dim in op.opaque for leaf in leaves(dim)}
    assert id(channels) not in whole
