"""Values that a config must have for its model to stand, where the library's default is none.

A value that the config brings is never changed. Sizes are those of the released models as far as recalled; those of
qwen4_exp and cohere_compass_text are chosen here.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

Contents = dict[str, Any]
Value = Any

# no released size is known: heads and budget of DeepSeek-V3.2's indexer (arXiv 2512.02556), in blocks of 4 tokens
_QSA = {
    "indexer_n_heads": 64, "indexer_kv_heads": 1, "indexer_head_dim": 256, "indexer_budget": 2048,
    "indexer_compress_ratio": 4,
}  # fmt: skip

# model type -> what is missing; a function takes the contents of the config.json (its defaults are not in it)
_MISSING: dict[str, dict[str, Value]] = {
    "dots1": {"n_routed_experts": 128, "n_shared_experts": 2, "num_experts_per_tok": 6},  # arXiv 2506.05767
    "deepseek_v2": {"num_experts_per_tok": 6},  # arXiv 2405.04434
    "hunyuan_v1_dense": {"head_dim": lambda c: c.get("hidden_size", 4096) // c.get("num_attention_heads", 32)},
    "hunyuan_v1_moe": {"head_dim": lambda c: c.get("hidden_size", 4096) // c.get("num_attention_heads", 32)},
    "ministral": {"head_dim": lambda c: c.get("hidden_size", 4096) // c.get("num_attention_heads", 32)},
    "nemotron": {"num_key_value_heads": lambda c: c.get("num_attention_heads", 48)},
    "lfm2_moe": {  # the pattern of LFM2-8B-A1B: two convolutions, then attention in every fourth layer
        "layer_types": lambda c: [
            "full_attention" if i % 4 == 2 else "conv" for i in range(c.get("num_hidden_layers", 32))
        ]
    },
    "bamba": {"attn_layer_indices": [9, 18, 27]},  # huggingface.co/ibm-ai-platform/Bamba-9B-v2
    "granitemoehybrid": {  # the pattern of Granite 4.0: attention in one layer of ten
        "layer_types": lambda c: [
            "full_attention" if i % 10 == 5 else "linear_attention" for i in range(c.get("num_hidden_layers", 32))
        ]
    },
    "cohere_compass_text": {
        "rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 10000.0}},
    },
    # huggingface.co/databricks/dbrx-instruct
    "dbrx": {"attn_config": {"rope_theta": 500000.0, "clip_qkv": 8}},
    "qwen4_exp_text": _QSA,
    "qwen4_exp": {"text_config": _QSA},
    "gemma4_assistant": {
        "text_config": {
            "model_type": "gemma4_text", "hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0,
            "enable_moe_block": False, "use_double_wide_mlp": False,
        }
    },
    "xmod": {"default_language": lambda c: (c.get("languages") or ["en_XX"])[0]},
}  # fmt: skip

# class -> what its config must say
_OF_CLASS: dict[str, dict[str, Value]] = {"ReformerModelWithLMHead": {"is_decoder": True}}

# own attention code that reads the mask: the usual one, built as a tensor
_ATTENTION: dict[str, tuple[str, ...]] = {
    "mpt": ("eager",), "qwen4_exp": ("sdpa", "eager"), "qwen4_exp_text": ("sdpa", "eager"),
}  # fmt: skip


def filled(kind: str, contents: Mapping[str, Any]) -> tuple[Contents, list[str]]:
    """The contents of a config.json of that model type with what is missing, and what was put in, a line each."""
    out, told = dict(contents), []
    for key, value in _MISSING.get(kind, {}).items():
        given = value(out) if callable(value) else value
        known = out.get(key)
        if isinstance(given, dict) and isinstance(known, dict):
            lacking = {k: v for k, v in given.items() if known.get(k) is None}
            out[key] = {**known, **lacking}
            told += [f"the config names no {key}.{k}: {v} stands in" for k, v in lacking.items()]
        elif known is None:
            out[key] = given
            shown = given if len(str(given)) < 60 else f"one of {len(given)} entries, chosen here,"
            told.append(f"the config names no {key}: {shown} stands in")
    return out, told


def part_for(cls: Any, config: Any) -> tuple[Any, list[str]]:
    """The part of a composite config that a class is made of: a language model takes the text part."""
    told = []
    for key, value in _OF_CLASS.get(cls.__name__, {}).items():
        if getattr(config, key, None) != value:
            setattr(config, key, value)
            told.append(f"`{cls.__name__}` takes {key} {value}, which the config does not say")
    wanted = getattr(cls, "config_class", None)
    if wanted is None or isinstance(config, wanted):
        return config, told
    parts: list[Callable[[], Any]] = [
        lambda: config.get_text_config(decoder=True),
        *(lambda n=name: getattr(config, n, None) for name in getattr(config, "sub_configs", {})),
    ]
    for part in parts:
        found = part()
        if isinstance(found, wanted):
            return found, [*told, f"the {found.model_type} part of the config alone is captured"]
    return config, told


def class_without_packages(config: Any) -> Any:
    """The text model of a composite one whose other towers need a package that is not installed, else None."""
    import transformers
    from transformers.utils import is_timm_available

    if getattr(config, "model_type", "") == "gemma3n" and not is_timm_available():
        return transformers.Gemma3nForCausalLM
    return None


def attention_of(config: Any, usual: tuple[str, ...]) -> tuple[str, ...]:
    """The attention implementations to try, best first."""
    return _ATTENTION.get(getattr(config, "model_type", ""), usual)


def config_of_cache(module: Any) -> Any:
    """The config whose layers a cache has: of a decoder that stands alone the decoder's, where it counts them apart."""
    config = module.config
    layers = getattr(config, "decoder_layers", None)
    if not isinstance(layers, int) or layers == getattr(config, "num_hidden_layers", layers):
        return config
    out = copy.deepcopy(config)
    out.num_hidden_layers = layers
    return out
