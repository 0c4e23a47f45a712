"""A U-Net of the shape of Stable Diffusion 1's: 320 channels, text of 77 x 768, latents of 64 x 64 x 4."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Residual(nn.Module):
    def __init__(self, inputs: int, outputs: int, time: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(32, inputs), nn.Conv2d(inputs, outputs, 3, padding=1)
        self.time = nn.Linear(time, outputs)
        self.norm2, self.conv2 = nn.GroupNorm(32, outputs), nn.Conv2d(outputs, outputs, 3, padding=1)
        self.skip = nn.Identity() if inputs == outputs else nn.Conv2d(inputs, outputs, 1)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        h = self.conv1(F.silu(self.norm1(x))) + self.time(F.silu(time))[:, :, None, None]
        return self.skip(x) + self.conv2(F.silu(self.norm2(h)))


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, context: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k = nn.Linear(width, width, bias=False), nn.Linear(context, width, bias=False)
        self.v, self.out = nn.Linear(context, width, bias=False), nn.Linear(width, width)

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        q, k, v = (
            t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (self.q(x), self.k(context), self.v(context))
        )
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class Transformer(nn.Module):
    def __init__(self, width: int, heads: int, context: int) -> None:
        super().__init__()
        self.norm, self.inner = nn.GroupNorm(32, width), nn.Conv2d(width, width, 1)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.own, self.cross = Attention(width, heads, width), Attention(width, heads, context)
        self.up, self.down = nn.Linear(width, 8 * width), nn.Linear(4 * width, width)
        self.outer = nn.Conv2d(width, width, 1)

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        batch, width, height, breadth = x.shape
        h = self.inner(self.norm(x)).flatten(2).transpose(1, 2)
        normed = self.norms[0](h)
        h = h + self.own(normed, normed)
        h = h + self.cross(self.norms[1](h), context)
        value, gate = self.up(self.norms[2](h)).chunk(2, dim=-1)
        h = h + self.down(value * F.gelu(gate))
        return x + self.outer(h.transpose(1, 2).reshape(batch, width, height, breadth))


class UNet(nn.Module):
    def __init__(
        self, width: int = 320, factors: tuple[int, ...] = (1, 2, 4, 4), depth: int = 2, heads: int = 8,
        context: int = 768, channels: int = 4,
    ) -> None:  # fmt: skip
        super().__init__()
        self.width, time = width, 4 * width
        self.time = nn.Sequential(nn.Linear(width, time), nn.SiLU(), nn.Linear(time, time))
        self.first = nn.Conv2d(channels, width, 3, padding=1)
        self.down, self.up, skips, here = nn.ModuleList(), nn.ModuleList(), [width], width
        for level, factor in enumerate(factors):
            last = level == len(factors) - 1
            for _ in range(depth):
                attention = nn.Identity() if last else Transformer(width * factor, heads, context)
                self.down.append(nn.ModuleList([Residual(here, width * factor, time), attention]))
                here = width * factor
                skips.append(here)
            if not last:
                self.down.append(nn.ModuleList([nn.Conv2d(here, here, 3, stride=2, padding=1)]))
                skips.append(here)
        self.middle = nn.ModuleList(
            [Residual(here, here, time), Transformer(here, heads, context), Residual(here, here, time)]
        )
        for level, factor in reversed(list(enumerate(factors))):
            for i in range(depth + 1):
                attention = nn.Identity() if level == len(factors) - 1 else Transformer(width * factor, heads, context)
                parts = [Residual(here + skips.pop(), width * factor, time), attention]
                here = width * factor
                if i == depth and level:
                    parts.append(nn.Conv2d(here, here, 3, padding=1))
                self.up.append(nn.ModuleList(parts))
        self.norm, self.last = nn.GroupNorm(32, here), nn.Conv2d(here, channels, 3, padding=1)

    def forward(self, x: Tensor, t: Tensor, text: Tensor) -> Tensor:
        half = self.width // 2
        angles = t[:, None] * torch.exp(-math.log(10000) * torch.arange(half, device=x.device) / half)
        time = self.time(torch.cat([angles.cos(), angles.sin()], dim=-1).to(x.dtype))
        h = self.first(x)
        kept = [h]
        for parts in self.down:
            h = parts[0](h) if len(parts) == 1 else self._pair(parts, h, time, text)
            kept.append(h)
        h = self.middle[2](self.middle[1](self.middle[0](h, time), text), time)
        for parts in self.up:
            h = self._pair(parts, torch.cat([h, kept.pop()], dim=1), time, text)
            if len(parts) == 3:
                h = parts[2](F.interpolate(h, scale_factor=2.0, mode="nearest"))
        return self.last(F.silu(self.norm(h)))

    @staticmethod
    def _pair(parts: nn.ModuleList, h: Tensor, time: Tensor, text: Tensor) -> Tensor:
        h = parts[0](h, time)
        return parts[1](h, text) if isinstance(parts[1], Transformer) else h


def build_model() -> nn.Module:
    return UNet()


def get_inputs(batch: int = 2) -> dict[str, Tensor]:
    return {
        "x": torch.randn(batch, 4, 64, 64),
        "t": torch.randint(0, 1000, (batch,)),
        "text": torch.randn(batch, 77, 768),
    }


def loss_fn(output: Tensor) -> Tensor:
    return F.mse_loss(output, torch.randn_like(output))
