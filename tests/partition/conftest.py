"""What the partition tests share: tiny real models of every kind, captured once, and plans for them."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from torchperf.graph.graph import Graph
from torchperf.partition.choose import candidates, sequence_leaves, split_of
from torchperf.partition.factors import propagate
from torchperf.partition.infer import _search
from torchperf.partition.placement import Placement, place
from torchperf.partition.prepare import Prepared, prepare

SMALL = {
    "num_hidden_layers": 2, "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "vocab_size": 56,
    "max_position_embeddings": 64,
}  # fmt: skip
TINY: dict[str, dict[str, Any]] = {
    "llama": {"architectures": ["LlamaForCausalLM"], "num_key_value_heads": 2, **SMALL},
    "gpt2": {"architectures": ["GPT2LMHeadModel"], "n_layer": 2, "n_embd": 32, "n_head": 4, "vocab_size": 56,
             "n_positions": 64},
    "bert": {"architectures": ["BertForMaskedLM"], **SMALL},
    "mixtral": {"architectures": ["MixtralForCausalLM"], "num_key_value_heads": 2, "num_local_experts": 4,
                "num_experts_per_tok": 2, **SMALL},
    "qwen3_moe": {"architectures": ["Qwen3MoeForCausalLM"], "num_key_value_heads": 2, "num_experts": 4,
                  "num_experts_per_tok": 2, "moe_intermediate_size": 24, "head_dim": 16, **SMALL},
    "phi3": {"architectures": ["Phi3ForCausalLM"], "num_key_value_heads": 2, "pad_token_id": 0, "bos_token_id": 1,
             "eos_token_id": 2, **SMALL},
    "gpt_neox": {"architectures": ["GPTNeoXForCausalLM"], **SMALL},
    "gemma3_text": {"architectures": ["Gemma3ForCausalLM"], "num_key_value_heads": 2, "head_dim": 16, **SMALL},
    "t5": {"architectures": ["T5ForConditionalGeneration"], "d_model": 32, "d_ff": 48, "d_kv": 8, "num_heads": 4,
           "num_layers": 2, "vocab_size": 56, "decoder_start_token_id": 0},
    "vit": {"architectures": ["ViTForImageClassification"], "hidden_size": 32, "intermediate_size": 48,
            "num_hidden_layers": 2, "num_attention_heads": 4, "image_size": 32, "patch_size": 8},
    "deepseek_v3": {**SMALL, "architectures": ["DeepseekV3ForCausalLM"], "num_hidden_layers": 3,
                    "first_k_dense_replace": 1, "moe_intermediate_size": 16, "num_key_value_heads": 4,
                    "n_routed_experts": 8, "n_group": 2, "topk_group": 1, "num_experts_per_tok": 2,
                    "n_shared_experts": 1, "q_lora_rank": 12, "kv_lora_rank": 10, "qk_nope_head_dim": 8,
                    "qk_rope_head_dim": 4, "v_head_dim": 8},
}  # fmt: skip

WIDE = {"num_hidden_layers": 3, "hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 16,
        "vocab_size": 32000, "max_position_embeddings": 1026}  # fmt: skip
_SEQ2SEQ = {"d_model": 1024, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 16,
            "decoder_attention_heads": 16, "encoder_ffn_dim": 4096, "decoder_ffn_dim": 4096,
            "vocab_size": 32000}  # fmt: skip
WITHOUT_PLAN: dict[str, dict[str, Any]] = {  # wide enough to be split as the full model is
    "opt": {"architectures": ["OPTForCausalLM"], **WIDE, "ffn_dim": 4096, "word_embed_proj_dim": 1024},
    "bloom": {"architectures": ["BloomForCausalLM"], "hidden_size": 1024, "n_layer": 3, "n_head": 16,
              "vocab_size": 32000},
    "gpt_neo": {"architectures": ["GPTNeoForCausalLM"], "hidden_size": 1024, "num_layers": 2, "num_heads": 16,
                "vocab_size": 32000, "attention_types": [[["global", "local"], 1]]},
    "gpt_bigcode": {"architectures": ["GPTBigCodeForCausalLM"], "n_embd": 1024, "n_layer": 3, "n_head": 16,
                    "vocab_size": 32000},
    "roberta": {"architectures": ["RobertaForMaskedLM"], **WIDE},
    "electra": {"architectures": ["ElectraForMaskedLM"], **WIDE, "embedding_size": 1024},
    "distilbert": {"architectures": ["DistilBertForMaskedLM"], "dim": 1024, "hidden_dim": 4096, "n_layers": 3,
                   "n_heads": 16, "vocab_size": 32000},
    "albert": {"architectures": ["AlbertForMaskedLM"], **WIDE, "embedding_size": 128},
    "bart": {"architectures": ["BartForConditionalGeneration"], **_SEQ2SEQ},
    "mbart": {"architectures": ["MBartForConditionalGeneration"], **_SEQ2SEQ},
    "whisper": {"architectures": ["WhisperForConditionalGeneration"], **_SEQ2SEQ, "pad_token_id": 1,
                "bos_token_id": 2, "eos_token_id": 2, "decoder_start_token_id": 3},
    "xglm": {"architectures": ["XGLMForCausalLM"], "d_model": 1024, "ffn_dim": 4096, "num_layers": 3,
             "attention_heads": 16, "vocab_size": 32000},
    "deit": {"architectures": ["DeiTForImageClassification"], **{k: v for k, v in WIDE.items() if k[0] in "hin"}},
    "stablelm": {"architectures": ["StableLmForCausalLM"], **WIDE},
    "persimmon": {"architectures": ["PersimmonForCausalLM"], **WIDE},
}  # fmt: skip


class Attention(nn.Module):
    """One weight for Q, K and V, as nanoGPT writes it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.heads, self.width = heads, width

    def forward(self, x: Any) -> Any:
        b, t, c = x.size()
        q, k, v = (y.view(b, t, self.heads, c // self.heads).transpose(1, 2) for y in self.c_attn(x).split(c, dim=2))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).contiguous().view(b, t, c))


class Layer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.ln_1, self.attn = nn.LayerNorm(width), Attention(width, heads)
        self.ln_2, self.c_fc, self.c_out = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Any) -> Any:
        x = x + self.attn(self.ln_1(x))
        return x + self.c_out(functional.gelu(self.c_fc(self.ln_2(x))))


class NanoGPT(nn.Module):
    """A hand-written GPT with tied embeddings."""

    def __init__(self, width: int = 1024, heads: int = 16, vocab: int = 50304, layers: int = 3) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, width), nn.Embedding(1024, width)
        self.h = nn.ModuleList([Layer(width, heads) for _ in range(layers)])
        self.ln_f, self.lm_head = nn.LayerNorm(width), nn.Linear(width, vocab, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, ids: Any) -> Any:
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1], device=ids.device))
        for layer in self.h:
            x = layer(x)
        logits = self.lm_head(self.ln_f(x))
        return functional.cross_entropy(logits.view(-1, logits.shape[-1]), ids.view(-1))


def _record(config: dict[str, Any], seq: int, batch: int) -> Graph:
    from torchperf.frontend.capture import capture
    from torchperf.frontend.hf import from_config

    subject = from_config(config, config["model_type"])
    subject.fixed = "one size is enough for this test"
    subject.sizes = {"batch": batch, **({} if "seq" not in subject.sizes else {"seq": seq})}
    graph = capture(subject, "train", subject.sizes)
    return graph.bind(**dict(graph.facts.sizes))


@pytest.fixture(scope="session")
def tiny(cache_folder: Path) -> Callable[..., Prepared]:
    """`tiny("llama")`, `tiny("llama", seq=32)`: a model of that type in miniature, factored, forward and backward."""

    @cache
    def make(kind: str, seq: int = 8, batch: int = 2, **changes: int) -> Prepared:
        return prepare(propagate(_record({"model_type": kind, **TINY[kind], **changes}, seq, batch)))

    return make


@pytest.fixture(scope="session")
def planless(cache_folder: Path) -> Callable[[str], Prepared]:
    """`planless("opt")`: a family that brings no plan of its own, a few layers wide enough to be worth splitting."""

    @cache
    def make(kind: str) -> Prepared:
        return prepare(propagate(_record({"model_type": kind, **WITHOUT_PLAN[kind]}, 256, 2)))

    return make


@pytest.fixture(scope="session")
def real(cache_folder: Path) -> Callable[..., Prepared]:
    """`real("llama-3.1-8b", num_hidden_layers=3)`: a bundled model with fewer layers, factored; `nanogpt` too."""
    import torchperf
    from torchperf import configs

    @cache
    def make(model: str, seq: int = 128, batch: int = 2, **changes: int) -> Prepared:
        if model == "nanogpt":
            with torch.device("meta"):
                module = NanoGPT()
            capture = torchperf.capture(module, lambda batch, seq: torch.zeros(batch, seq, dtype=torch.long))
            return prepare(propagate(capture.bind(batch=batch, seq=seq)))
        return prepare(propagate(_record({**configs.load(model), **changes}, seq, batch)))

    return make


@pytest.fixture(scope="session")
def megatron() -> Callable[..., Placement]:
    """The plan without the hub leaf, at any size: what a search with free communication finds."""

    def make(prepared: Prepared, ranks: int, *, sequence: bool = False, experts: bool = False) -> Placement:
        left_out = {"hidden", "positions"} | (set() if experts else {"experts"})
        usable = [c for c in candidates(prepared.factors) if c.leaf.name not in left_out and c.leaf.size % 2 == 0]
        if experts:
            inside = [c for c in usable if all("experts." in name for name, _ in c.uses) and c.leaf.name != "experts"]
            usable = [c for c in usable if c not in inside]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("torchperf.partition.infer.S_PER_COLLECTIVE", 0.0)
            patch.setattr("torchperf.partition.infer.SENT_PER_S", 1e14)
            found = _search(prepared, usable, (2,), "tp", {})
        leaves = [c.leaf for c in found.taken]
        along = sequence_leaves(prepared.factors) if sequence else ()
        return place(prepared, split_of(prepared.factors, leaves, ranks, sequence=along))

    return make


@pytest.fixture(scope="session")
def lockstep() -> ModuleType:
    """The checker of every op on every rank, see lockstep.py."""
    spec = importlib.util.spec_from_file_location("lockstep", Path(__file__).with_name("lockstep.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["lockstep"] = module
    spec.loader.exec_module(module)
    return module


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "without_plan" in metafunc.fixturenames:
        metafunc.parametrize("without_plan", WITHOUT_PLAN)
