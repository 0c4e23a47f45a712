"""Capture <-> text that a person can read, write and compare: one fact, storage, value, op or call a line.

    torchperf graph 1

    graph llama-3.1-8b
      class LlamaForCausalLM
      mode train
      range seq 2..131072
      parameter model.embed_tokens.weight, lm_head.weight: bf16[128256, 4096] @s0 trainable
      ...
      block b1 forward model.layers.*
        s0: activation, 8192*batch*seq bytes
        s1: param, 8192 bytes, model.layers.*.input_layernorm.weight
        v0: bf16[batch, seq, 4096] strides [4096*seq, 4096, 1] @s0
        v4: bf16[batch, seq, 1024] strides [6144*seq, 6144, 1] @s3+5120
        v5, v6 = aten.split.Tensor(self=v4, split_size=512, dim=-1) in model.layers.*.self_attn
      call b1 model.layers.0 s(12..19 3 25)

Names and paths are bare where they hold only letters, digits and `_.*/-`, else JSON strings. Arguments are
None, True, integers, floats, JSON strings, size expressions (expr.py), `0.5 / (seq)`, `2.0 * (seq)`, and
lists of these. What stands at its default is left out; the parts of a fused op follow it, two spaces deeper.
Lines that are blank or begin with `#` say nothing. `read(show(c)) == c`.
"""

from .text_read import read
from .text_write import show

__all__ = ["read", "show"]
