"""Recurrences along a sequence as one operator each, with a meta kernel and autograd, as fused kernels run them.

selective_scan     state[b,d,n] = exp(delta A) state + delta B u, out[b,d,t] = C . state + D u, times silu(z)   Mamba
wkv                a running softmax of keys with a decay a channel, over values                                RWKV
gated_recurrence   state[b,d] = gate state + x                                                                  RG-LRU

The state stays on chip: inputs are read once and outputs written once; backward runs the recurrence again for the
states, which forward does not keep. Sources: arXiv 2312.00752 section 3.3.2, 2305.13048, 2402.19427.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_SCHEMAS = {
    "selective_scan": (
        "Tensor u, Tensor delta, Tensor A, Tensor B, Tensor C, Tensor? D=None, Tensor? z=None, Tensor? bias=None", 2
    ),
    "wkv": ("Tensor decay, Tensor first, Tensor key, Tensor value", 4),
    "gated_recurrence": ("Tensor x, Tensor gate", 2),
}  # fmt: skip
_library = torch.library.Library("torchperf", "FRAGMENT")


def _selective_scan(u: Tensor, delta: Tensor, A: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    """u, delta [B, D, L], A [D, N], B, C [B, N, L], D, bias [D], z [B, D, L] -> [B, D, L], state [B, D, N]."""
    return torch.empty_like(u), u.new_empty((u.shape[0], *A.shape), dtype=torch.float32)


def _wkv(decay: Tensor, first: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
    """decay, first [D], key, value [B, L, D] -> [B, L, D], numerator, denominator and largest exponent [B, D]."""
    state = [key.new_empty((key.shape[0], key.shape[2]), dtype=torch.float32) for _ in range(3)]
    return (torch.empty_like(key), *state)


def _gated_recurrence(x: Tensor, gate: Tensor) -> tuple[Tensor, Tensor]:
    """x, gate [B, L, D] -> every state [B, L, D], the last one [B, D]."""
    return torch.empty_like(x), x.new_empty((x.shape[0], x.shape[2]), dtype=torch.float32)


def _gradients(_grad: Tensor, *inputs: Any) -> list[Tensor]:
    return [torch.empty_like(tensor) for tensor in inputs if tensor is not None]


_FORWARD = {"selective_scan": _selective_scan, "wkv": _wkv, "gated_recurrence": _gated_recurrence}
for _name, (_arguments, _outputs) in _SCHEMAS.items():
    _library.define(f"{_name}({_arguments}) -> ({', '.join(['Tensor'] * _outputs)})")
    _library.define(f"{_name}_backward(Tensor grad_out, {_arguments}) -> Tensor[]")
    _library.impl(_name, _FORWARD[_name], "Meta")
    _library.impl(f"{_name}_backward", _gradients, "Meta")


class _Scan(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, name: str, *inputs: Any) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            out = getattr(torch.ops.torchperf, name)(*inputs)
        ctx.save_for_backward(*inputs)
        ctx.name = name
        ctx.mark_non_differentiable(*out[1:])
        return tuple(out)

    @staticmethod
    def backward(ctx: Any, grad: Any, *_states: Any) -> Any:
        inputs = ctx.saved_tensors
        found = iter(getattr(torch.ops.torchperf, f"{ctx.name}_backward")(grad, *inputs))
        return None, *(None if tensor is None else next(found) for tensor in inputs)


def scan(name: str, *inputs: Any) -> tuple[Tensor, ...]:
    """The recurrence of that name: its outputs over the sequence, then its last states, which have no gradient."""
    out: tuple[Tensor, ...] = _Scan.apply(name, *inputs)  # type: ignore[no-untyped-call]
    return out
