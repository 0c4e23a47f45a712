"""Small models of every family, with the sizes at which a graph is bound and never was captured."""

from __future__ import annotations

import importlib.util
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

from torchperf.frontend import user_file
from torchperf.frontend.hf import from_config
from torchperf.frontend.live import subject_of_module
from torchperf.frontend.subject import Subject

_DENSE = {
    "vocab_size": 97, "hidden_size": 64, "intermediate_size": 112, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 4096,
}  # fmt: skip
_EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", **_DENSE},
    "gpt2": {
        "model_type": "gpt2", "vocab_size": 97, "n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 2048,
    },
    "mixtral": {
        "model_type": "mixtral", **_DENSE, "num_local_experts": 8, "num_experts_per_tok": 2, "sliding_window": None,
    },
    "qwen3-moe": {"model_type": "qwen3_moe", **_DENSE, **_EXPERTS},
    "deepseek-v3": {
        "model_type": "deepseek_v3", "vocab_size": 97, "hidden_size": 64, "intermediate_size": 112,
        "moe_intermediate_size": 48, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 4,
        "n_shared_experts": 1, "n_routed_experts": 8, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1,
        "first_k_dense_replace": 1, "q_lora_rank": 24, "kv_lora_rank": 16, "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 16, "v_head_dim": 12, "max_position_embeddings": 4096,
    },
    "gemma-3": {
        "model_type": "gemma3_text", **_DENSE, "num_hidden_layers": 4, "sliding_window": 50,
        "query_pre_attn_scalar": 16, "layer_types": ["sliding_attention", "full_attention"] * 2,
    },
    "gpt-oss": {
        "model_type": "gpt_oss", **_DENSE, "num_local_experts": 8, "num_experts_per_tok": 2, "sliding_window": 50,
    },
    "mamba2": {
        "model_type": "mamba2", "vocab_size": 97, "hidden_size": 64, "state_size": 16, "num_hidden_layers": 2,
        "num_heads": 8, "head_dim": 16, "expand": 2, "n_groups": 2, "chunk_size": 32,
    },
    "bert": {
        "model_type": "bert", "vocab_size": 97, "hidden_size": 64, "intermediate_size": 112,
        "num_hidden_layers": 3, "num_attention_heads": 4, "max_position_embeddings": 2048,
        "architectures": ["BertForMaskedLM"],
    },
    "t5": {
        "model_type": "t5", "vocab_size": 97, "d_model": 64, "d_kv": 16, "d_ff": 112, "num_layers": 3,
        "num_heads": 4, "decoder_start_token_id": 0, "architectures": ["T5ForConditionalGeneration"],
    },
    "vit": {
        "model_type": "vit", "hidden_size": 64, "intermediate_size": 112, "num_hidden_layers": 3,
        "num_attention_heads": 4, "image_size": 64, "patch_size": 16,
        "architectures": ["ViTForImageClassification"],
    },
    "whisper": {
        "model_type": "whisper", "vocab_size": 97, "d_model": 64, "encoder_layers": 3, "decoder_layers": 3,
        "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 112,
        "decoder_ffn_dim": 112, "num_mel_bins": 16, "max_source_positions": 60, "max_target_positions": 1024,
        "pad_token_id": 1, "bos_token_id": 2, "eos_token_id": 2, "decoder_start_token_id": 3,
        "architectures": ["WhisperForConditionalGeneration"],
    },
}  # fmt: skip

NANO_GPT = """
import math
import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda"


class Block(nn.Module):
    def __init__(self, width, heads, length):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(0.1)
        self.register_buffer("mask", torch.tril(torch.ones(length, length, device=device)).view(1, 1, length, length))

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.qkv(self.ln_1(x)).split(C, dim=2)
        q, k, v = (t.view(B, T, self.heads, C // self.heads).transpose(1, 2) for t in (q, k, v))
        scores = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        scores = scores.masked_fill(self.mask[:, :, :T, :T] == 0, float("-inf"))
        y = F.softmax(scores, dim=-1) @ v
        x = x + self.dropout(self.proj(y.transpose(1, 2).contiguous().view(B, T, C)))
        return x + self.dropout(self.down(F.gelu(self.up(self.ln_2(x)))))


class GPT(nn.Module):
    def __init__(self, vocab=97, width=64, heads=4, layers=3, block_size=1024):
        super().__init__()
        self.block_size = block_size
        self.tok, self.pos = nn.Embedding(vocab, width), nn.Embedding(block_size, width)
        self.blocks = nn.ModuleList([Block(width, heads, block_size) for _ in range(layers)])
        self.ln_f, self.head = nn.LayerNorm(width), nn.Linear(width, vocab, bias=False)
        self.head.weight = self.tok.weight

    def forward(self, idx, targets=None):
        B, T = idx.shape
        x = self.tok(idx) + self.pos(torch.arange(T, device=device))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.ln_f(x))
        loss = None
        if targets is not None:
            loss = F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1)
        return logits, loss


model = GPT().to(device)
"""


class Bottleneck(nn.Module):
    """A ResNet-50 block (He et al., arXiv 1512.03385): 1x1, 3x3, 1x1 and a shortcut."""

    def __init__(self, wide_in: int, wide: int, stride: int) -> None:
        super().__init__()
        out = 4 * wide
        self.body = nn.Sequential(
            nn.Conv2d(wide_in, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.ReLU(inplace=True),
            nn.Conv2d(wide, wide, 3, stride, 1, bias=False), nn.BatchNorm2d(wide), nn.ReLU(inplace=True),
            nn.Conv2d(wide, out, 1, bias=False), nn.BatchNorm2d(out),
        )  # fmt: skip
        self.shortcut = nn.Sequential()
        if stride > 1 or wide_in != out:
            self.shortcut = nn.Sequential(nn.Conv2d(wide_in, out, 1, stride, bias=False), nn.BatchNorm2d(out))
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.relu(self.body(x) + self.shortcut(x))


class ResNet(nn.Module):
    def __init__(self, depths: tuple[int, ...] = (3, 3), classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 16, 7, 2, 3, bias=False), nn.BatchNorm2d(16), nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, 1),
        )  # fmt: skip
        layers, wide_in = [], 16
        for i, depth in enumerate(depths):
            wide = 16 << i
            blocks = [Bottleneck(wide_in if j == 0 else 4 * wide, wide, 2 if i and not j else 1) for j in range(depth)]
            layers.append(nn.Sequential(*blocks))
            wide_in = 4 * wide
        self.layers = nn.Sequential(*layers)
        self.head = nn.Linear(wide_in, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(self.stem(x)).mean((2, 3)))


def _encoder(batch: int = 2, seq: int = 64) -> torch.Tensor:
    return torch.empty(batch, seq, 64)


FAMILIES = (*CONFIGS, "nano-gpt", "transformer-encoder", "resnet")


@pytest.fixture(scope="session")
def family(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Subject]:
    """`family("llama")`: a few layers of that architecture, on meta, with its inputs at any size."""

    def make(name: str) -> Subject:
        if name in CONFIGS:
            return from_config(CONFIGS[name], name)
        if name == "nano-gpt":
            path: Path = tmp_path_factory.mktemp("nano") / "model.py"
            path.write_text(textwrap.dedent(NANO_GPT))
            return user_file.load(path, None)
        with torch.device("meta"):
            if name == "resnet":
                return subject_of_module(ResNet(), torch.empty(2, 3, 64, 64), name)
            layer = nn.TransformerEncoderLayer(64, 4, 112, batch_first=True)
            return subject_of_module(nn.TransformerEncoder(layer, 3, enable_nested_tensor=False), _encoder, name)

    return make


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "name" in metafunc.fixturenames:
        metafunc.parametrize("name", FAMILIES)


def _load(name: str) -> ModuleType:
    """A helper beside this file, imported once."""
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return sys.modules[name]


@pytest.fixture(scope="session")
def parallel() -> ModuleType:
    """PyTorch's own parallelism and a recorder of what it sends, see parallel.py."""
    return _load("parallel")


@pytest.fixture(scope="session")
def sharded() -> ModuleType:
    """Models sharded by hand, see sharded.py."""
    return _load("sharded")
