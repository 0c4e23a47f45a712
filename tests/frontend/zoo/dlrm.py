"""DLRM on Criteo: 26 bags of embeddings, 13 numbers, pairwise products. Naumov et al., arXiv 1906.00091."""

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

ROWS = (
    1_000_000, 39060, 17295, 7424, 20265, 3, 7122, 1543, 63, 1_000_000, 3067956, 405282, 10, 2209, 11938, 155, 4, 976,
    14, 1_000_000, 1_000_000, 1_000_000, 590152, 12973, 108, 36,
)  # fmt: skip


def mlp(*widths: int) -> nn.Sequential:
    return nn.Sequential(*(part for a, b in pairwise(widths) for part in (nn.Linear(a, b), nn.ReLU())))


class DLRM(nn.Module):
    def __init__(self, rows: tuple[int, ...] = ROWS, width: int = 128) -> None:
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(n, width, mode="sum") for n in rows)
        self.bottom = mlp(13, 512, 256, width)
        pairs = len(rows) * (len(rows) + 1) // 2
        self.top = nn.Sequential(mlp(width + pairs, 1024, 1024, 512, 256), nn.Linear(256, 1))

    def forward(self, dense: Tensor, ids: list[Tensor], offsets: list[Tensor], clicked: Tensor) -> Tensor:
        x = self.bottom(dense)
        rows = [x, *(bag(i, o) for bag, i, o in zip(self.bags, ids, offsets, strict=True))]
        stacked = torch.stack(rows, dim=1)
        products = torch.bmm(stacked, stacked.transpose(1, 2))
        i, j = torch.tril_indices(len(rows), len(rows), offset=-1, device=x.device)
        logits = self.top(torch.cat([x, products[:, i, j]], dim=1)).squeeze(1)
        return F.binary_cross_entropy_with_logits(logits, clicked)


def build_model() -> nn.Module:
    return DLRM()


def get_inputs(batch: int = 2048) -> dict[str, object]:
    return {
        "dense": torch.randn(batch, 13),
        "ids": [torch.randint(0, rows, (batch,)) for rows in ROWS],
        "offsets": [torch.arange(batch) for _ in ROWS],
        "clicked": torch.rand(batch),
    }
