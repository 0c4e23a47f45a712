"""One attention operator of our own, whatever the model wrote: `torchperf::attention`, with a meta kernel and autograd.

On the meta device torch always picks the math path, which upcasts to fp32 and materialises the scores; a GPU runs a
fused kernel instead. Unlike aten's flash and efficient operators this one takes any mask, any value head dim, sinks,
a soft cap, a window or a chunk, and its outputs have no alignment padding.

    query [B, Hq, Sq, D]   key [B, Hkv, Skv, D]   value [B, Hkv, Skv, Dv]   out [B, Hq, Sq, Dv]   logsumexp [B, Hq, Sq]

`is_causal` is aligned to the bottom right: query i sees keys j <= i + Skv - Sq. `window` w keeps the last w of these,
`chunk` c only those with the same j // c.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_ATTRS = (
    "float dropout_p=0.0, bool is_causal=False, float? scale=None, int? window=None, int? chunk=None, "
    "float? softcap=None"
)
_library = torch.library.Library("torchperf", "DEF")
_library.define(
    "attention(Tensor query, Tensor key, Tensor value, Tensor? bias=None, Tensor? sinks=None, *, "
    f"{_ATTRS}) -> (Tensor, Tensor)"
)
_library.define(
    "attention_backward(Tensor grad_out, Tensor query, Tensor key, Tensor value, Tensor out, Tensor logsumexp, "
    f"Tensor? bias=None, Tensor? sinks=None, *, {_ATTRS}, bool[2] output_mask=[False, False]) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor)"
)


def _forward(query: Tensor, key: Tensor, value: Tensor, bias: Any = None, sinks: Any = None, **_: Any) -> Any:
    batch, heads, length, _dim = query.shape
    # laid out as [B, S, H, D] like the flash kernels' output, so that the transpose back is free
    out = query.new_empty((batch, length, heads, value.shape[-1])).transpose(1, 2)
    return out, query.new_empty((batch, heads, length), dtype=torch.float32)


def _backward(
    grad_out: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, logsumexp: Tensor,
    bias: Any = None, sinks: Any = None, output_mask: Any = (False, False), **_: Any,
) -> Any:  # fmt: skip
    grad_bias = torch.empty_like(bias) if output_mask[0] else query.new_empty(0)
    grad_sinks = torch.empty_like(sinks) if output_mask[1] else query.new_empty(0)
    return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value), grad_bias, grad_sinks


_library.impl("attention", _forward, "Meta")
_library.impl("attention_backward", _backward, "Meta")


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Any, key: Any, value: Any, bias: Any, sinks: Any, attrs: dict[str, Any]) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            out, logsumexp = torch.ops.torchperf.attention(query, key, value, bias, sinks, **attrs)
        ctx.save_for_backward(query, key, value, out, logsumexp, bias, sinks)
        ctx.attrs = attrs
        return out

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        query, key, value, out, logsumexp, bias, sinks = ctx.saved_tensors
        mask = [bool(bias is not None and ctx.needs_input_grad[3]), bool(sinks is not None and ctx.needs_input_grad[4])]
        attrs = dict(ctx.attrs, output_mask=mask) if any(mask) else ctx.attrs
        dq, dk, dv, dbias, dsinks = torch.ops.torchperf.attention_backward(
            grad, query, key, value, out, logsumexp, bias, sinks, **attrs
        )
        return dq, dk, dv, dbias if mask[0] else None, dsinks if mask[1] else None, None


def attention(query: Tensor, key: Tensor, value: Tensor, bias: Any = None, sinks: Any = None, **attrs: Any) -> Tensor:
    """The fused attention of `attrs` (defaults left out), differentiable in every tensor argument."""
    attrs = {name: attr for name, attr in attrs.items() if attr not in (None, False, 0.0)}
    out: Tensor = _Attention.apply(query, key, value, bias, sinks, attrs)  # type: ignore[no-untyped-call]
    return out
