"""Bounds on what a config may ask for: a typing error must not build a million layers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..graph.errors import TorchperfError

MAX_LAYERS = 10_000
MAX_EXPERTS = 100_000
MAX_SIZE = 2**40  # of any whole number in a config: a width, a vocabulary, a number of positions
_LAYERS = ("layers", "layer", "depth", "n_block", "blocks")
_EXPERTS = ("num_experts", "n_routed_experts", "num_local_experts")


def check_config(config: Mapping[str, Any], name: str) -> None:
    """Raises TorchperfError, naming the key, where a number of the config is beyond what any model has."""
    for key, value in _numbers(config, ""):
        last = key.rpartition(".")[2]
        most = MAX_SIZE
        if last.endswith(_LAYERS):
            most = MAX_LAYERS
        elif last in _EXPERTS:
            most = MAX_EXPERTS
        if abs(value) > most:
            raise TorchperfError(
                f"`{key}` of the config is {value:,}, beyond {most:,}" if abs(value) < 10**30 else
                f"`{key}` of the config is a number of more than 30 digits",
                facts=[("in", name)], hint="mend the config",
            )  # fmt: skip


def _numbers(config: Mapping[str, Any], at: str) -> Iterator[tuple[str, int]]:
    for key, value in config.items():
        where = f"{at}.{key}" if at else str(key)
        if isinstance(value, Mapping):
            yield from _numbers(value, where)
        elif isinstance(value, int) and not isinstance(value, bool):
            yield where, value
