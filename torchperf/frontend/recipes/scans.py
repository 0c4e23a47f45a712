"""Recurrences that a model runs in a Python loop over the sequence, as one op of scan_op.py each."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .overrides import Override
from .scan_op import scan

_ONE_OP = "the scan of `{}` is one op, as fused kernels run it; its own code here loops over the sequence"


def selective_scan(
    hidden_states: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None = None,
    z: Tensor | None = None, delta_bias: Tensor | None = None, delta_softplus: bool = False,
    return_last_state: bool = False, **_: Any,
) -> Any:  # fmt: skip
    """As `mamba_selective_scan`: hidden_states, dt, z [B, D, L], A [D, N], B, C [B, N, L] -> [B, D, L]."""
    out, state = scan("selective_scan", hidden_states, dt, A, B, C, D, z, delta_bias)
    return (out, state) if return_last_state else out


def wkv(
    time_decay: Tensor, time_first: Tensor, key: Tensor, value: Tensor, state: Any = None, return_state: bool = False
) -> tuple[Tensor, Any]:
    """As `rwkv_linear_attention`; a state that is given is read and handed on."""
    out, *states = scan("wkv", time_decay, time_first, key, value)
    return out, states if return_state or state is not None else None


def rg_lru(
    self: Any, hidden_states: Tensor, recurrent_gate: Tensor, reset: Tensor, recurrent_states: Tensor | None,
    acc_dtype: torch.dtype = torch.float32,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """As `RecurrentGemmaRglru._rnn_scan`: x, gate [B, L, D] -> [B, L, D] and the last state [B, D]."""
    gate = recurrent_gate * ~reset
    if hidden_states.shape[1] == 1:
        if recurrent_states is None:
            return hidden_states, hidden_states[:, 0].type(acc_dtype)
        new = gate.type(acc_dtype) * recurrent_states[:, None] + hidden_states.type(acc_dtype)
        return new.type(hidden_states.dtype), new[:, -1]
    out, last = scan("gated_recurrence", hidden_states, gate)
    return out, last


def _mamba(family: str, mixer: str) -> Override:
    return Override(family, "", "mamba_selective_scan", selective_scan, mixer, _ONE_OP.format(mixer))


OVERRIDES = (
    _mamba("mamba", "MambaMixer"),
    _mamba("falcon_mamba", "FalconMambaMixer"),
    _mamba("jamba", "JambaMambaMixer"),
    _mamba("zamba", "ZambaMambaMixer"),
    Override(
        "rwkv", "", "rwkv_linear_attention", wkv, "RwkvSelfAttention", _ONE_OP.format("RwkvSelfAttention")
    ),
    Override(
        "recurrent_gemma", "RecurrentGemmaRglru", "_rnn_scan", rg_lru, "RecurrentGemmaRglru",
        _ONE_OP.format("RecurrentGemmaRglru"),
    ),
)  # fmt: skip
