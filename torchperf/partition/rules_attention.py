"""Fused attention, ours and aten's: batch and heads split freely, keys and head dims stay whole."""

from __future__ import annotations

from .algebra import Dim, fresh, leaves
from .rules import rule
from .step import Step


def _bind(step: Step, at: int) -> tuple[list[Dim], list[Dim], list[Dim]]:
    """q [B, Hkv*g, Sq, D], k [B, Hkv, Skv, D], v [B, Hkv, Skv, Dv]."""
    step.facts.kind = "matmul"
    q, k, v = step.dims(at), step.dims(at + 1), step.dims(at + 2)
    heads, kv_heads = step.shape(at)[1], step.shape(at + 1)[1]
    step.same(q[0], k[0])
    step.same(q[0], v[0])
    step.same(k[1], v[1])
    step.same(k[2], v[2])
    step.same(q[3], k[3])
    if heads == kv_heads:
        step.same(q[1], k[1])
        step.hint(q[1], "heads")
    else:
        group = fresh(heads // kv_heads)
        step.hint(group, "group")
        step.hint(k[1], "kv_heads")
        step.same(q[1], [*k[1], *group])
    step.hint(q[3], "head_dim")
    step.facts.opaque += [k[2], q[2], q[3], v[3]]
    return q, k, v


def _bind_extras(step: Step, q: list[Dim], k: list[Dim]) -> None:
    """A bias [B, H, Sq, Skv], any of them 1, and sinks [H]."""
    for name in ("bias", "attn_bias", "attn_mask"):
        bias, i = step.of(name), step.index(name)
        if bias is not None and i is not None:
            whole = [q[0], q[1], q[2], k[2]]
            for j in range(1, len(bias) + 1):
                if bias[-j]:
                    step.same(bias[-j], whole[-j])
    sinks = step.of("sinks")
    if sinks is not None:
        step.same(sinks[0], q[1])


@rule("attention", "_scaled_dot_product_flash_attention", "_scaled_dot_product_efficient_attention",
      "_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_cudnn_attention")  # fmt: skip
def attention(step: Step) -> None:
    q, k, v = _bind(step, 0)
    _bind_extras(step, q, k)
    step.put(0, [q[0], q[1], q[2], v[3]])
    for j in range(1, len(step.op.outputs)):
        shape = step.out_shape(j)
        step.put(j, [q[0], q[1], q[2]] if shape == step.shape(0)[:3] else step.fresh(shape))


@rule("attention_backward", "_scaled_dot_product_flash_attention_backward",
      "_scaled_dot_product_efficient_attention_backward", "_scaled_dot_product_flash_attention_for_cpu_backward",
      "_scaled_dot_product_cudnn_attention_backward")  # fmt: skip
def attention_backward(step: Step) -> None:
    """dK and dV sum over the query heads that share them; a bias or sinks over what they were stretched along."""
    q, k, v = _bind(step, 1)
    _bind_extras(step, q, k)
    for x, y in zip(step.dims(0), [q[0], q[1], q[2], v[3]], strict=True):
        step.same(x, y)
    out = step.of("out")
    if out is not None:
        for x, y in zip(out, [q[0], q[1], q[2], v[3]], strict=True):
            step.same(x, y)
    statistics = step.of("logsumexp")
    i = step.index("logsumexp")
    if statistics is not None and i is not None and step.shape(i) == step.shape(1)[:3]:
        for x, y in zip(statistics, q[:3], strict=True):
            step.same(x, y)
    shared = {id(leaf) for leaf in leaves(k[1])}
    group = [leaf for leaf in leaves(q[1]) if id(leaf) not in shared]
    step.put(0, list(q))
    step.put(1, list(k), [group] if group else [])
    step.put(2, list(v), [group] if group else [])
    whole = [q[0], q[1], q[2], k[2]]
    bias, bias_at = step.of("bias") or step.of("attn_bias"), step.index("bias") or step.index("attn_bias")
    sinks = step.of("sinks")
    for j in range(3, len(step.op.outputs)):
        shape = step.out_shape(j)
        if bias is not None and bias_at is not None and shape == step.shape(bias_at):
            lost = [whole[-n] for n in range(1, 5) if n > len(bias) or not bias[-n]]
            step.put(j, list(bias), lost)
        elif sinks is not None and len(shape) == 1 and shape[0] == step.shape(1)[1]:
            step.put(j, list(sinks), [q[0], q[2]])
        else:
            step.put(j, step.fresh(shape))
