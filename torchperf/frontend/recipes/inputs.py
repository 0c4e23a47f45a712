"""Arguments of forward that one kind of model alone takes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from ..inputs import image
from ..inputs.made import Inputs, Model, ids


def _ids_of_codebooks(module: Any, made: Inputs) -> None:
    """Token ids [batch * codebooks, seq] of an audio decoder, labels [batch, seq, codebooks]."""
    books = int(module.config.num_codebooks)
    made.makers["input_ids"] = lambda at: ids(at["batch"] * books, at["seq"])
    if "labels" in made.makers:
        made.makers["labels"] = lambda at: ids(at["batch"], at["seq"], books)
    made.assumptions.append(f"a token is one of each of {books} codebooks")


def _keys_of_another(module: Any, made: Inputs) -> None:
    """Hidden states and last keys and values of the model that is assisted, as many tokens as are asked of it."""
    config, text = module.config, module.config.get_text_config()
    dtype = next(module.parameters()).dtype

    def states(at: Any) -> Any:
        return torch.empty(at["batch"], at["seq"], 2 * config.backbone_hidden_size, dtype=dtype, device="meta")

    def shared(at: Any) -> Any:
        found: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
        for kind, layer in zip(text.layer_types, module.model.layers, strict=True):
            own = layer.self_attn
            heads = text.num_attention_heads // own.num_key_value_groups
            one = torch.empty(at["batch"], heads, at["seq"], own.head_dim, dtype=dtype, device="meta")
            found.setdefault(kind, (one, torch.empty_like(one)))
        return found

    made.makers.pop("input_ids", None)
    made.makers.pop("labels", None)
    made.makers["inputs_embeds"], made.makers["shared_kv_states"] = states, shared
    made.assumptions.append("the assisted model's keys and values are as long as what is asked of this one")


def _with_image(module: Any, made: Inputs) -> None:
    """An image, without which its loss counts the wrong tokens."""
    image.add(Model.of(module, made.limits.get("seq")), made)


def _with_lengths(_module: Any, made: Inputs) -> None:
    """Lengths of the samples, on the host: the model reads them."""
    made.makers["lengths"] = lambda at: torch.full((at["batch"],), at["seq"])


def _of_axial_length(module: Any, made: Inputs) -> None:
    """The one length that axial positions can be trained at."""
    config = module.config
    if not config.axial_pos_embds or "seq" not in made.sizes:
        return
    length = math.prod(config.axial_pos_shape)
    del made.sizes["seq"]
    made.limits.pop("seq", None)
    for name in ("input_ids", "labels"):
        if name in made.makers:
            made.makers[name] = lambda at: ids(at["batch"], length)
    made.assumptions.append(f"{length} tokens: its axial positions are trained at no other length")


_BY_CLASS: dict[str, Callable[[Any, Inputs], None]] = {
    "MusicgenForCausalLM": _ids_of_codebooks,
    "MusicgenMelodyForCausalLM": _ids_of_codebooks,
    "GitForCausalLM": _with_image,
    "XLMWithLMHeadModel": _with_lengths,
    "ReformerModelWithLMHead": _of_axial_length,
    "Gemma4AssistantForCausalLM": _keys_of_another,
    "Gemma4UnifiedAssistantForCausalLM": _keys_of_another,
}


def add_inputs(module: Any, made: Inputs) -> None:
    """Put right the makers of a model's inputs where it takes its own."""
    found = _BY_CLASS.get(type(module).__name__)
    if found is not None:
        found(module, made)


def rows_of(module: Any) -> int:
    """Rows of token ids that stand for one sequence."""
    return int(module.config.num_codebooks) if _BY_CLASS.get(type(module).__name__) is _ids_of_codebooks else 1
