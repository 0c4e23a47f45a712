"""DiT-XL/2 on 256 x 256 images, whose latents are 32 x 32 x 4: Peebles and Xie, arXiv 2212.09748, tables 1 and 4."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.qkv, self.proj = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        q, k, v = self.qkv(x).reshape(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        out = F.scaled_dot_product_attention(q, k, v)
        return self.proj(out.transpose(1, 2).reshape(batch, tokens, width))


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.attn = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width))
        self.modulation = nn.Sequential(nn.SiLU(), nn.Linear(width, 6 * width))

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        shift1, scale1, gate1, shift2, scale2, gate2 = self.modulation(condition).unsqueeze(1).chunk(6, dim=-1)
        x = x + gate1 * self.attn(self.norm1(x) * (1 + scale1) + shift1)
        return x + gate2 * self.mlp(self.norm2(x) * (1 + scale2) + shift2)


class DiT(nn.Module):
    def __init__(
        self, width: int = 1152, depth: int = 28, heads: int = 16, patch: int = 2, side: int = 32, channels: int = 4,
        classes: int = 1000,
    ) -> None:  # fmt: skip
        super().__init__()
        self.patch, self.side, self.channels = patch, side, channels
        self.embed = nn.Conv2d(channels, width, patch, stride=patch)
        self.register_buffer("positions", torch.zeros(1, (side // patch) ** 2, width))
        self.time = nn.Sequential(nn.Linear(256, width), nn.SiLU(), nn.Linear(width, width))
        self.label = nn.Embedding(classes + 1, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.modulation = nn.Sequential(nn.SiLU(), nn.Linear(width, 2 * width))
        self.head = nn.Linear(width, patch * patch * 2 * channels)

    def forward(self, x: Tensor, t: Tensor, y: Tensor) -> Tensor:
        frequencies = torch.exp(-math.log(10000) * torch.arange(128, device=x.device) / 128)
        angles = t[:, None].float() * frequencies[None]
        waves = torch.cat([angles.cos(), angles.sin()], dim=-1).to(x.dtype)
        condition = self.time(waves) + self.label(y)
        x = self.embed(x).flatten(2).transpose(1, 2) + self.positions
        for block in self.blocks:
            x = block(x, condition)
        shift, scale = self.modulation(condition).unsqueeze(1).chunk(2, dim=-1)
        x = self.head(self.norm(x) * (1 + scale) + shift)
        grid = self.side // self.patch
        x = x.reshape(-1, grid, grid, self.patch, self.patch, 2 * self.channels)
        return torch.einsum("nhwpqc->nchpwq", x).reshape(-1, 2 * self.channels, self.side, self.side)


def build_model() -> nn.Module:
    return DiT()


def get_inputs(batch: int = 4) -> tuple[Tensor, ...]:
    return torch.randn(batch, 4, 32, 32), torch.randint(0, 1000, (batch,)), torch.randint(0, 1000, (batch,))


def loss_fn(output: Tensor) -> Tensor:
    noise, _variance = output.chunk(2, dim=1)
    return F.mse_loss(noise.float(), torch.randn_like(noise).float())
