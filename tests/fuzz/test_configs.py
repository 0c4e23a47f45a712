"""config.json files with values that no model has, and ones that name code to run."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

BASE: dict[str, dict[str, Any]] = {
    "llama": {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 32, "intermediate_size": 48,
        "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 64,
        "max_position_embeddings": 256,
    },
    "gpt2": {"model_type": "gpt2", "n_embd": 32, "n_layer": 1, "n_head": 2, "vocab_size": 64, "n_positions": 256},
}  # fmt: skip
VALUES = st.sampled_from(
    [0, -1, 1, 2, 3, 7, 64, 0.5, 1e308, math.nan, math.inf, 2**40 + 1, 10**9, 10**30, 10**400, True, None, "", "4", "x",
     [], [4], {}, {"a": 1}, "__import__('os').system('id')", ["../evil.py"], ["os.system"], ["pipeline"], [1], "evil"]
)  # fmt: skip
EXTRA = ["auto_map", "trust_remote_code", "attn_implementation", "_attn_implementation", "dtype", "rope_scaling",
         "rope_parameters", "hidden_act", "quantization_config", "_name_or_path", "is_decoder", "torchperf",
         "tie_word_embeddings", "head_dim", "use_cache", "layer_types"]  # fmt: skip


@settings(
    max_examples=max(1, settings().max_examples * 15 // 100), deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)  # fmt: skip
@given(st.sampled_from(sorted(BASE)), st.data())
def test_odd_values(ends_well: Callable[..., Result], empty: Path, base: str, data: st.DataObject) -> None:
    """Estimated, or refused with what is wrong; never built to the size of a typing error."""
    config = dict(BASE[base])
    for _ in range(data.draw(st.integers(1, 2))):
        config[data.draw(st.sampled_from([*config, *EXTRA]))] = data.draw(VALUES)
    (empty / "config.json").write_text(json.dumps(config))
    ends_well("estimate", ".", "--gpu", "h100-sxm-80gb", "--seq-len", "16", "--mode", "forward")


@pytest.mark.parametrize(
    "harm",
    [{"auto_map": {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"}, "trust_remote_code": True},
     {"architectures": ["evil.Model"]}, {"architectures": ["../evil"]}, {"model_type": "evil"}],
    ids=["auto_map", "dotted", "path", "type"],
)  # fmt: skip
def test_code_beside_a_config_is_not_run(
    ends_well: Callable[..., Result], empty: Path, monkeypatch: pytest.MonkeyPatch, harm: dict[str, Any]
) -> None:
    """A file next to the config, which the config names, is never imported."""
    monkeypatch.syspath_prepend(empty)
    (empty / "evil.py").write_text("from pathlib import Path\nPath('ran').touch()\n")
    (empty / "config.json").write_text(json.dumps({**BASE["llama"], **harm}))
    ends_well("estimate", ".", "--gpu", "h100-sxm-80gb", "--seq-len", "16")
    assert not (empty / "ran").exists()


@pytest.mark.parametrize("key", ["num_hidden_layers", "vocab_size", "hidden_size"])
def test_a_number_beyond_bounds_names_its_key(command: Callable[..., Result], empty: Path, key: str) -> None:
    (empty / "config.json").write_text(json.dumps({**BASE["llama"], key: 2**41}))
    found = command("estimate", ".", "--gpu", "h100-sxm-80gb")
    assert found.exit_code == 2
    assert f"`{key}` of the config is 2,199,023,255,552" in found.stderr
