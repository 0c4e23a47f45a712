"""A gated feed-forward whose autograd.Function keeps its inputs alone and computes the rest again in backward."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class GatedUnit(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
        ctx.save_for_backward(x, gate, up, down)
        return (F.silu(x @ gate.T) * (x @ up.T)) @ down.T

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, ...]:
        x, gate, up, down = ctx.saved_tensors
        g, u = x @ gate.T, x @ up.T
        s = torch.sigmoid(g)
        h = g * s
        flat, rows = grad.flatten(0, -2), x.flatten(0, -2)
        d_down = flat.T @ (h * u).flatten(0, -2)
        d_hidden = grad @ down
        d_u, d_g = d_hidden * h, d_hidden * u * (s + h * (1 - s))
        d_x = d_g @ gate + d_u @ up
        return d_x, d_g.flatten(0, -2).T @ rows, d_u.flatten(0, -2).T @ rows, d_down


class Layer(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(width)
        self.gate = nn.Parameter(torch.randn(inner, width))
        self.up = nn.Parameter(torch.randn(inner, width))
        self.down = nn.Parameter(torch.randn(width, inner))

    def forward(self, x: Tensor) -> Tensor:
        return x + GatedUnit.apply(self.norm(x), self.gate, self.up, self.down)


class Stack(nn.Module):
    def __init__(self, width: int = 2048, inner: int = 5632, depth: int = 22) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(width, inner) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x.float().pow(2).mean()


def build_model() -> nn.Module:
    return Stack()


def get_inputs(batch: int = 2, seq: int = 2048) -> Tensor:
    return torch.randn(batch, seq, 2048)
