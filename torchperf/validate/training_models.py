"""The model of a measured run: its class and the dims that the row and the map give."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..frontend.modules.spec import ModelSpec
from ..graph.errors import TorchperfError
from .training_formulas import Dims
from .training_map import TrainingMap

if TYPE_CHECKING:
    from .training_rows import TrainingRow

# columns of the file -> fields of a config
_CELLS = {
    "transformers": {
        "layers": "num_hidden_layers", "hidden": "hidden_size", "heads": "num_attention_heads",
        "kv_heads": "num_key_value_heads", "ffn_hidden": "intermediate_size", "vocab": "vocab_size",
    },
    "gpt": {
        "layers": "layers", "hidden": "hidden", "heads": "heads", "kv_heads": "kv_heads", "ffn_hidden": "ffn",
        "vocab": "vocab",
    },
}  # fmt: skip
POSITIONS = 2**20  # rotary tables have no rows: any length will do
_MUST = ("layers", "hidden", "heads", "vocab")


def model_of(row: TrainingRow, known: TrainingMap) -> ModelSpec:
    """The spec of the row's model; raises TorchperfError for one that is not mapped, or lacks a dim."""
    name = row.cells["model"]
    found = next(
        (m for m in known.models if (not m.key or row.key in m.key) and re.fullmatch(m.match, name)), None
    )  # fmt: skip
    if found is None:
        raise TorchperfError(f"no model is mapped for `{name}`")
    if found.kind not in _CELLS:
        raise TorchperfError(f"unknown kind of model `{found.kind}` (training_map.toml)")
    config = dict(found.config)
    for setting in row.settings:
        config.update(setting.config)
    names = _CELLS[found.kind]
    for cell, field in names.items():
        if cell not in found.leave and field not in config and row.cells.get(cell):
            config[field] = row.whole(cell)
    missing = [cell for cell in _MUST if names[cell] not in config]
    if missing:
        raise TorchperfError(f"the source states no {', '.join(missing)} of `{name}`")
    multiple = next((s.vocab_multiple for s in reversed(row.settings) if s.vocab_multiple is not None), 0)
    if multiple:
        config[names["vocab"]] = padded(config[names["vocab"]], multiple * row.whole("tp", 1))
    if found.kind == "transformers":
        config.setdefault("max_position_embeddings", POSITIONS)
    elif config.pop("learned_positions", False):
        config["positions"] = row.whole("seq_len")
    mtp = next((s.mtp for s in reversed(row.settings) if s.mtp is not None), found.mtp)
    return ModelSpec.of(name, found.kind, config, mtp)


def num_layers(model: ModelSpec) -> int:
    """Decoder layers, without those of multi-token prediction."""
    return int(model.contents[_CELLS[model.kind]["layers"]])


def padded(vocab: int, multiple: int) -> int:
    """Rows of the embedding: Megatron-LM pads to a multiple of `--make-vocab-size-divisible-by` times tp."""
    return math.ceil(vocab / multiple) * multiple


def dims_of(model: ModelSpec, batch: int, seq: int) -> Dims:
    """The dims of a model as the publishers' formulas want them."""
    config: Mapping[str, Any] = model.contents
    names = _CELLS[model.kind]
    layers, hidden, heads, vocab = (int(config[names[cell]]) for cell in _MUST)
    plain = model.kind == "gpt"
    width = config.get("moe_intermediate_size") or config.get(names["ffn_hidden"]) or 4 * hidden
    return Dims(
        batch=batch,
        seq=seq,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=int(config.get(names["kv_heads"]) or heads),
        head_dim=int(config.get("head_dim") or hidden // heads),
        ffn=int(width),
        vocab=vocab,
        gated=config.get("activation") == "swiglu" if plain else config["model_type"] != "nemotron",
        top_k=int(config.get("num_experts_per_tok") or config.get("top_k") or 1),
    )
