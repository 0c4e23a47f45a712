"""Models that do not generate, and graphs that keep nothing, say so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from torchperf.frontend.hf import from_config
from torchperf.frontend.inference import for_mode
from torchperf.graph.cache import kv_bytes
from torchperf.graph.errors import TorchperfError
from torchperf.graph.graph import Capture


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"model_type": "bert", "architectures": ["BertForMaskedLM"]}, "no model that generates"),
        ({"model_type": "vit"}, "no model that generates"),
    ],
)
def test_a_model_that_cannot_generate_says_so(config: dict[str, Any], reason: str) -> None:
    with pytest.raises(TorchperfError, match="cannot be captured as it generates") as caught:
        for_mode(from_config(config, "model"), "decode")
    assert reason in dict(caught.value.facts)["reason"]


def test_other_modes_keep_nothing(shallow: Callable[..., Capture]) -> None:
    found = shallow("llama").graphs[0]
    assert found.facts.cache == ()
    with pytest.raises(TorchperfError, match="tells of no cache"):
        kv_bytes(found.facts, 16, 1, 100)
