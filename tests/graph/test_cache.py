"""Bytes of a key-value cache, by hand."""

from __future__ import annotations

import pytest

from torchperf.graph.cache import CacheEntry, bytes_per_token, growing_bytes, kv_bytes, state_bytes
from torchperf.graph.errors import TorchperfError
from torchperf.graph.graph import Facts

FULL = CacheEntry("layers.*.attn", (1, 3), "kv", 8, 2048)
WINDOW = CacheEntry("layers.*.attn", (0, 2, 4), "kv", 8, 2048, 128)
LATENT = CacheEntry("layers.*.attn", tuple(range(5)), "latent", 1, 576)
STATE = CacheEntry("layers.*.mixer", (5, 6), "state", 16, 4096, 0, "fp32")


def facts(*entries: CacheEntry) -> Facts:
    return Facts("m", "M", "decode", cache=entries)


def test_a_window_bounds_its_layers_alone() -> None:
    assert kv_bytes(facts(FULL, WINDOW), 16, 3, 1000) == 3 * 2048 * 2 * (2 * 1000 + 3 * 128)
    assert bytes_per_token(facts(FULL, WINDOW)) == 5 * 2048 * 2
    assert bytes_per_token(facts(FULL, WINDOW), length=129) == 2 * 2048 * 2


def test_a_state_does_not_grow_and_keeps_its_dtype() -> None:
    assert kv_bytes(facts(STATE), 8, 2, 10) == kv_bytes(facts(STATE), 8, 2, 10_000) == 2 * 2 * 4096 * 4
    assert growing_bytes(facts(STATE), 8, 2, 10_000) == 0
    assert state_bytes(facts(STATE), 2, tp=4) == 2 * 2 * 1024 * 4


@pytest.mark.parametrize(("tp", "share"), [(1, 1), (2, 2), (8, 8), (16, 8), (64, 8), (3, 1), (12, 1)])
def test_heads_are_split_where_they_divide(tp: int, share: int) -> None:
    """Eight heads: never less than one a device, never part of one."""
    assert kv_bytes(facts(FULL), 16, 1, 100, tp=tp) == 2 * 2048 * 2 * 100 // share


@pytest.mark.parametrize("tp", [1, 2, 8, 16])
def test_a_latent_is_whole_on_every_device(tp: int) -> None:
    assert kv_bytes(facts(LATENT), 16, 1, 100, tp=tp) == 5 * 576 * 2 * 100


def test_bits() -> None:
    """8 bits halve it, 4.25 are int4 with a scale and zero point a head of 128."""
    assert kv_bytes(facts(FULL), 8, 1, 10) == kv_bytes(facts(FULL), None, 1, 10) // 2
    assert kv_bytes(facts(FULL), 4.25, 1, 10) == 2 * 2048 * 10 * 17 // 32


def test_a_stage_of_a_pipeline() -> None:
    whole = facts(FULL, WINDOW, STATE)
    parts = [kv_bytes(whole, 16, 1, 500, layers=range(low, high)) for low, high in ((0, 2), (2, 5), (5, 7))]
    assert parts[0] == 2048 * 2 * (500 + 128)
    assert sum(parts) == kv_bytes(whole, 16, 1, 500)


def test_an_encoder_is_cached_by_its_own_length() -> None:
    cross = CacheEntry("layers.*.cross", (0, 1), "cross", 12, 1536)
    assert kv_bytes(facts(cross), 16, 1, 10, source=1500) == 2 * 1536 * 2 * 1500
    assert bytes_per_token(facts(cross, FULL)) == 2 * 2048 * 2
    with pytest.raises(TorchperfError, match="caches its encoder"):
        kv_bytes(facts(cross), 16, 1, 10)


def test_what_is_not_known_is_no_zero() -> None:
    with pytest.raises(TorchperfError, match="tells of no cache"):
        kv_bytes(facts(), 16, 1, 10)
    with pytest.raises(TorchperfError, match="unknown kind of cache `ring`"):
        CacheEntry("m", (0,), "ring", 1, 1)
