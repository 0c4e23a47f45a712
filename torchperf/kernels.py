"""One kernel's price from its plain dims, without a model: what `torchperf kernel` and studies call."""

from __future__ import annotations

from . import annotate
from .graph.errors import TorchperfError
from .graph.op import Op
from .graph.price import Price
from .graph.system import Accelerator
from .graph.tensor import Value
from .graph.work import Work
from .price import attention as attention_formula
from .price import matmul as matmul_formula


def matmul_price(
    accelerator: Accelerator, m: int, n: int, k: int, *, batch: int = 1, groups: int | None = None,
    imbalance: float = 1.0, dtype: str = "bf16", quantise: bool = False, sustained: bool = False,
) -> Price:  # fmt: skip
    """x[m,k] . w[k,n]: seconds, bound and terms. `groups` shares the m rows over that many w (experts).

    dtype       bf16 | fp16 | fp32 | tf32 | fp8 | fp8_block | nvfp4 | int8 | int8_wo | int4_wo
    quantise    add the kernel that quantises x
    sustained   steady clocks instead of a short burst
    Raises TorchperfError where the device lacks the type.
    """
    dtypes = matmul_formula.CLASSES.get(dtype, dtype)
    form = matmul_formula.FORMATS[dtypes]
    dims = (("batch", batch), ("m", m), ("n", n), ("k", k)) + ((("groups", groups),) if groups else ())
    flops = 2 * batch * m * n * k
    met = min(groups, m) if groups else 1
    read = int(batch * k * (form.x * m + form.w * n * met))
    element = {"fp8": "fp8", "fp4": "fp4", "int8": "i8"}.get(form.peak, form.peak)
    equation = "mk,gkn->mn" if groups else "bmk,bkn->bmn"
    work = Work("matmul", form.engine, element, flops, flops, flops, read, int(form.y * batch * m * n), dims, equation)
    return matmul_formula.price(work, accelerator, sustained, quantise, imbalance, dtypes)


def attention_price(
    accelerator: Accelerator, q: int, kv: int, *, batch: int, heads: int, kv_heads: int, head_dim: int,
    v_head_dim: int, causal: bool = True, window: int | None = None, backward: bool = False,
    library: str = "default", dtype: str = "bf16", kv_dtype: str | None = None,
) -> Price:  # fmt: skip
    """Fused attention of `batch` sequences, `q` queries over `kv` keys each: seconds, bound and terms.

    Raises TorchperfError where key heads do not divide query heads, or the device lacks the type.
    """
    if heads % kv_heads:
        raise TorchperfError(
            f"{kv_heads} key heads do not divide {heads} query heads", hint="give `--kv-heads` that divides `--heads`"
        )

    def value(slot: int, heads: int, length: int, width: int) -> Value:
        return Value(slot, dtype, (batch, heads, length, width), (heads * length * width, length * width, width, 1))

    query, key = value(0, heads, q, head_dim), value(1, kv_heads, kv, head_dim)
    values, out = value(2, kv_heads, kv, v_head_dim), value(3, heads, q, v_head_dim)
    attrs = (("is_causal", causal and q > 1), ("window", window))
    if backward:
        op = Op(
            "torchperf.attention_backward.default", "backward", "", ("grad_out", "query", "key", "value"),
            (out, query, key, values), (query, key, values), attrs,
        )  # fmt: skip
    else:
        names, inputs = ("query", "key", "value"), (query, key, values)
        op = Op("torchperf.attention.default", "forward", "", names, inputs, (out,), attrs)
    element = {None: None, "bf16": 2, "fp8": 1}[kv_dtype]
    return attention_formula.price(annotate.work(op), accelerator, library, backward, element)
