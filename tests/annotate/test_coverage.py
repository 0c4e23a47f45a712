"""No op of the models that people run is unknown, and the laws hold for every op that they run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from torchperf.annotate import KINDS, work
from torchperf.graph.op import Op

transformers = pytest.importorskip("transformers")

TINY: dict[str, Any] = {
    "vocab_size": 96, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
}  # fmt: skip
HF: dict[str, dict[str, Any]] = {
    "llama": TINY,
    "gpt2": {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 96},
    "mixtral": {**TINY, "num_local_experts": 4},
    "qwen3_moe": {**TINY, "moe_intermediate_size": 32, "num_experts": 8, "num_experts_per_tok": 2},
    "deepseek_v3": {
        **TINY, "num_key_value_heads": 4, "n_routed_experts": 8, "n_group": 2, "topk_group": 1,
        "num_experts_per_tok": 2, "moe_intermediate_size": 32, "first_k_dense_replace": 1, "q_lora_rank": 32,
        "kv_lora_rank": 32, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 16, "head_dim": 8,
    },
    "gemma3_text": {**TINY, "sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]},
    "gpt_oss": {**TINY, "num_local_experts": 4, "num_experts_per_tok": 2},
    "mamba2": {
        "vocab_size": 96, "hidden_size": 64, "num_hidden_layers": 2, "num_heads": 8, "head_dim": 16,
        "state_size": 16, "n_groups": 1, "chunk_size": 16,
    },
    "qwen3_next": {
        **TINY, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 32, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
        "linear_key_head_dim": 16, "linear_value_head_dim": 16,
        "layer_types": ["linear_attention", "full_attention"],
    },
    "bloom": {"vocab_size": 96, "hidden_size": 64, "n_layer": 2, "n_head": 4},
    "bert": {**TINY, "max_position_embeddings": 64},
}  # fmt: skip


@pytest.fixture
def fused_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention as one aten op and dropout with its mask, as on a GPU."""

    def sdpa(
        query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0,
        is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
    ) -> Any:  # fmt: skip
        if attn_mask is None and query.shape[-1] == value.shape[-1]:
            flash = torch.ops.aten._scaled_dot_product_flash_attention
            return flash(query, key, value, dropout_p, is_causal, False, scale=scale)[0]
        if enable_gqa:
            repeats = query.shape[1] // key.shape[1]
            key, value = key.repeat_interleave(repeats, 1), value.repeat_interleave(repeats, 1)
        if attn_mask is not None:
            if attn_mask.dtype == torch.bool:
                attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype).masked_fill_(~attn_mask, -torch.inf)
            attn_mask = attn_mask.expand(*query.shape[:3], key.shape[2])
        efficient = torch.ops.aten._scaled_dot_product_efficient_attention
        return efficient(query, key, value, attn_mask, True, dropout_p, is_causal, scale=scale)[0]

    def dropout(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
        return torch.ops.aten.native_dropout(input, p, True)[0] if training and p else input

    monkeypatch.setattr(F, "scaled_dot_product_attention", sdpa)
    monkeypatch.setattr(F, "dropout", dropout)
    masks = pytest.importorskip("transformers.masking_utils")
    monkeypatch.setattr(masks, "find_packed_sequence_indices", lambda *a, **k: None, raising=False)


def check(ops: list[Op]) -> None:
    """Nothing unknown; no negative count; causal at most non-causal; whatever is no view moves bytes."""
    works = [(op, work(op)) for op in ops]
    unknown = Counter(op.name for op, w in works if not w.known)
    assert not unknown
    for op, w in works:
        assert w.kind in KINDS
        assert w.engine in ("matrix", "vector", "none")
        assert 0 <= w.flops <= w.flops_noncausal
        assert w.flops_executed >= w.flops
        assert w.bytes_read >= 0
        assert w.bytes_written >= 0
        if w.kind == "view":
            assert w.nbytes == w.flops == 0
        elif any(value.numel for value in op.outputs):
            assert w.nbytes > 0, op.name
    assert sum(w.flops for _, w in works if w.engine == "matrix") > 0


def train(model: nn.Module, **inputs: Any) -> Callable[[], None]:
    def step() -> None:
        out = model(**inputs)
        tensor = out if isinstance(out, torch.Tensor) else getattr(out, "loss", None)
        if tensor is None:
            tensor = next(value for value in out.values() if isinstance(value, torch.Tensor))
        (tensor if tensor.dim() == 0 else tensor.float().sum()).backward()

    return step


def tokens(length: int = 32) -> torch.Tensor:
    return torch.zeros(2, length, dtype=torch.long, device="meta")


def hf(name: str, head: str, **config: Any) -> Any:
    made = transformers.AutoConfig.for_model(name, **config)
    with torch.device("meta"):
        return getattr(transformers, head).from_config(made, dtype=torch.bfloat16).train()


@pytest.mark.usefixtures("fused_attention")
@pytest.mark.parametrize("name", HF)
def test_language_models(name: str, record: Callable[..., list[Op]]) -> None:
    model = hf(name, "AutoModelForMaskedLM" if name == "bert" else "AutoModelForCausalLM", **HF[name])
    extra = {} if name == "bert" else {"use_cache": False}
    check(record(train(model, input_ids=tokens(), labels=tokens(), **extra)))


SMALL = {
    "vocab_size": 256, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2,
}  # fmt: skip
EXPERTS = {"head_dim": 16, "moe_intermediate_size": 32, "num_experts": 8, "num_experts_per_tok": 2}


@pytest.mark.usefixtures("fused_attention")
@pytest.mark.parametrize(
    ("name", "config", "flops"), [("llama", SMALL, 6_291_456), ("qwen3_moe", {**SMALL, **EXPERTS}, 4_784_128)]
)
def test_forward_flops(name: str, config: dict[str, Any], flops: int, record: Callable[..., list[Op]]) -> None:
    """O03, O02: projections, attention without the triangle, router, active experts and head."""
    model = hf(name, "AutoModelForCausalLM", **config)
    ids = torch.zeros(1, 32, dtype=torch.long, device="meta")
    works = [work(op) for op in record(lambda: model(input_ids=ids, use_cache=False))]
    assert sum(w.flops_noncausal for w in works if w.engine == "matrix") == flops


@pytest.mark.usefixtures("fused_attention")
def test_t5(record: Callable[..., list[Op]]) -> None:
    sizes = {"d_model": 64, "d_kv": 16, "d_ff": 96, "num_layers": 2, "num_heads": 4}
    model = hf("t5", "AutoModelForSeq2SeqLM", vocab_size=96, **sizes)
    check(record(train(model, input_ids=tokens(), decoder_input_ids=tokens(), use_cache=False)))


@pytest.mark.usefixtures("fused_attention")
def test_whisper(record: Callable[..., list[Op]]) -> None:
    model = hf(
        "whisper", "AutoModelForSpeechSeq2Seq", vocab_size=96, d_model=64, encoder_layers=2, decoder_layers=2,
        encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=96, decoder_ffn_dim=96,
        max_source_positions=64, max_target_positions=64, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        decoder_start_token_id=1, begin_suppress_tokens=None,
    )  # fmt: skip
    sound = torch.zeros(2, 80, 128, dtype=torch.bfloat16, device="meta")
    check(record(train(model, input_features=sound, labels=tokens(), use_cache=False)))


@pytest.mark.usefixtures("fused_attention")
def test_vit(record: Callable[..., list[Op]]) -> None:
    small = {k: v for k, v in TINY.items() if k not in ("vocab_size", "num_key_value_heads", "head_dim")}
    model = hf("vit", "AutoModelForImageClassification", image_size=32, patch_size=8, **small)
    pixels = torch.zeros(2, 3, 32, 32, dtype=torch.bfloat16, device="meta")
    check(record(train(model, pixel_values=pixels, labels=torch.zeros(2, dtype=torch.long, device="meta"))))


class Bottleneck(nn.Module):
    def __init__(self, width: int, groups: int = 1) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(width, width // 2, 1, bias=False), nn.BatchNorm2d(width // 2), nn.ReLU(inplace=True),
            nn.Conv2d(width // 2, width // 2, 3, padding=1, groups=groups), nn.GroupNorm(2, width // 2),
            nn.SiLU(), nn.Conv2d(width // 2, width, 1), nn.BatchNorm2d(width),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.body(x) + x)


@pytest.mark.parametrize("training", [True, False])
def test_convolution_net(training: bool, record: Callable[..., list[Op]]) -> None:
    with torch.device("meta"):
        model = nn.Sequential(
            nn.Conv2d(3, 16, 7, stride=2, padding=3), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(3, 2, 1),
            Bottleneck(16), Bottleneck(16, groups=4), nn.AvgPool2d(2),
            nn.Upsample(scale_factor=2, mode="bilinear"), nn.ConvTranspose2d(16, 8, 2, stride=2),
            nn.Dropout2d(0.1), nn.InstanceNorm2d(8), nn.PixelShuffle(2), nn.AdaptiveAvgPool2d(2),
            nn.Flatten(), nn.Linear(8, 10), nn.LogSoftmax(-1),
        ).train(training)  # fmt: skip
    images = torch.zeros(2, 3, 64, 64, device="meta")
    check(record(train(model, input=images)))


@pytest.mark.parametrize("training", [True, False])
def test_transformer_encoder(training: bool, record: Callable[..., list[Op]]) -> None:
    with torch.device("meta"):
        layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, norm_first=True)
        model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).train(training)
    check(record(train(model, src=torch.zeros(2, 16, 32, device="meta"))))


@pytest.fixture
def recurrent() -> Iterator[nn.Module]:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm, self.gru = nn.LSTM(8, 16, 2), nn.GRU(16, 16, bidirectional=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            states: torch.Tensor = self.gru(self.lstm(x)[0])[0]
            spectrum: torch.Tensor = torch.fft.rfft(states, dim=0)
            return spectrum.abs().cumsum(0)

    with torch.device("meta"):
        yield Recurrent()


def test_recurrent_net(recurrent: nn.Module, record: Callable[..., list[Op]]) -> None:
    with torch.device("meta"):
        check(record(train(recurrent, x=torch.zeros(4, 2, 8))))


X = torch.zeros(4, 8, device="meta")
ACTIVATIONS: list[Callable[[torch.Tensor], torch.Tensor]] = [
    F.relu6, F.elu, F.leaky_relu, F.hardswish, F.mish, F.softplus, F.logsigmoid, F.gelu, F.silu,
]  # fmt: skip
FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "activations": lambda x: torch.stack([f(x) for f in ACTIVATIONS]),
    "norms": lambda x: F.layer_norm(x, (8,)) + F.rms_norm(x, (8,), X[0]) + F.normalize(x) + x.norm() + x.std(),
    "selection": lambda x: x.sort()[0] + x.topk(8)[0] + x.max(1, keepdim=True)[0] + x.roll(1) + x.flip(0),
    "indexing": lambda x: x.index_add(0, X[:2, 0].long(), X[:2]) + x.gather(1, X.long()) + x[X[:, 0].long()],
    "images": lambda x: F.interpolate(F.pad(x[None], (1, 1), mode="reflect"), scale_factor=2, mode="linear"),
    "complex": lambda x: torch.complex(x, x).abs() + torch.fft.irfft(torch.fft.rfft(x)),
    "losses": lambda x: F.mse_loss(x, X) + F.huber_loss(x, X) + F.binary_cross_entropy_with_logits(x, X),
    "scans": lambda x: torch.logcumsumexp(x, 0) + x.cumprod(0) + x.cummax(0)[0],
    "solves": lambda x: torch.linalg.inv(x[:, :4]) @ torch.linalg.solve_triangular(x[:, :4], x, upper=True),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name: str, record: Callable[..., list[Op]]) -> None:
    weight = torch.zeros(8, 8, device="meta", requires_grad=True)
    check(record(lambda: FUNCTIONS[name](X @ weight).sum().backward()))


@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize("optimizer", [torch.optim.AdamW, torch.optim.SGD, torch.optim.Adafactor])
def test_optimizers_as_torch_runs_them(optimizer: Any, foreach: bool, record: Callable[..., list[Op]]) -> None:
    with torch.device("meta"):
        model = nn.Linear(8, 8)

    def step() -> None:
        model(X).sum().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer(model.parameters(), lr=0.1, foreach=foreach).step()

    check(record(step))
