"""Experts that a model runs in a loop over the data of a tensor, as grouped products over the rows that are routed.

Every token takes `top_k` experts, and the experts' rows lie one behind the other: [tokens * top_k, hidden]. How many
rows each one gets is data; the product over all of them is the same for any routing.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .overrides import Override

_GROUPED = "experts that its own code runs one by one are counted as one grouped product over tokens * top-k rows"


def _offsets(indices: Tensor, experts: int) -> Tensor:
    """Where the rows of each expert end, [experts], from the experts that the tokens take."""
    ones = torch.zeros(experts, dtype=torch.int32, device=indices.device)
    taken = indices.reshape(-1)
    return ones.scatter_add(0, taken, torch.ones_like(taken, dtype=torch.int32)).cumsum(0, dtype=torch.int32)


def _product(rows: Tensor, weight: Tensor, offsets: Tensor) -> Tensor:
    """rows [r, k] in groups . weight [g, k, n] -> [r, n]."""
    out: Tensor = torch._grouped_mm(rows, weight, offs=offsets)
    return out


def jetmoe_gating(self: Any, hidden_states: Tensor) -> tuple[Any, ...]:
    """As `JetMoeTopKGating.forward`, the counts of the experts kept a tensor."""
    logits = self.layer(hidden_states).float()
    top_logits, top_indices = logits.topk(self.top_k, dim=1)
    gates = torch.softmax(top_logits, dim=1).type_as(hidden_states)
    flat = top_indices.flatten()
    _, order = flat.sort(0)
    token = order.div(self.top_k, rounding_mode="trunc")
    return order, token, gates.flatten()[order], _offsets(top_indices, self.num_experts), logits


def jetmoe_experts(self: Any, inputs: Tensor, offsets: Tensor) -> Tensor:
    """As `JetMoeParallelExperts.forward`: inputs [tokens * top_k, in] -> [tokens * top_k, out]."""
    return _product(inputs, self.weight.transpose(1, 2), offsets)


def longcat_experts(self: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    """As `LongcatFlashExperts.forward`; zero experts take their share of the rows and compute nothing."""
    tokens, top_k = top_k_index.shape
    order = top_k_index.flatten().sort(0)[1]
    token = order.div(top_k, rounding_mode="trunc")
    rows = hidden_states[token]
    routed = tokens * top_k * self.num_routed_experts // self.total_experts
    if self.gate_up_proj is None or not routed:
        out = rows
    else:
        ends = _offsets(top_k_index, self.total_experts)
        gate, up = _product(rows[:routed], self.gate_up_proj.transpose(1, 2), ends).chunk(2, dim=-1)
        made = _product(self.act_fn(gate) * up, self.down_proj.transpose(1, 2), ends[: self.num_routed_experts])
        out = torch.cat((made, rows[routed:]))
    out = out * top_k_weights.flatten()[order, None]
    return torch.zeros_like(hidden_states).index_add(0, token, out.to(hidden_states.dtype))


def llama4_moe(self: Any, hidden_states: Tensor) -> tuple[Tensor, Tensor]:
    """As `Llama4TextMoe.forward`, each token with the experts that it takes and not, weighted by 0, with all."""
    hidden_states = hidden_states.reshape(-1, self.hidden_dim)
    logits = torch.nn.functional.linear(hidden_states, self.router.weight)
    top, indices = logits.topk(self.top_k, dim=1)
    order = indices.flatten().sort(0)[1]
    token = order.div(self.top_k, rounding_mode="trunc")
    scores = torch.sigmoid(top.float()).to(top.dtype).flatten()[order, None]
    rows, ends = hidden_states[token] * scores, _offsets(indices, self.num_experts)
    gate, up = _product(rows, self.experts.gate_up_proj, ends).chunk(2, dim=-1)
    made = _product(up * self.experts.act_fn(gate), self.experts.down_proj, ends)
    return self.shared_expert(hidden_states).index_add(0, token, made), logits


def dbrx_experts(self: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    """As `DbrxExperts.forward`: w1, v1 and w2 hold the experts one below the other, [experts * ffn, hidden]."""
    shape, top_k = hidden_states.shape, top_k_index.shape[-1]
    hidden_states = hidden_states.reshape(-1, self.hidden_size)
    order = top_k_index.flatten().sort(0)[1]
    token = order.div(top_k, rounding_mode="trunc")
    rows, ends = hidden_states[token], _offsets(top_k_index, self.num_experts)
    split = (self.num_experts, self.ffn_hidden_size, self.hidden_size)
    gate = self.mlp.activation_fn(_product(rows, self.mlp.w1.view(split).transpose(1, 2), ends))
    up = _product(rows, self.mlp.v1.view(split).transpose(1, 2), ends)
    out = _product(gate * up, self.mlp.w2.view(split), ends) * top_k_weights.flatten()[order, None]
    return torch.zeros_like(hidden_states).index_add(0, token, out).view(shape)


OVERRIDES = (
    Override("dbrx", "DbrxExperts", "forward", dbrx_experts, "DbrxExperts", _GROUPED),
    Override("jetmoe", "JetMoeTopKGating", "forward", jetmoe_gating, "JetMoeTopKGating"),
    Override("jetmoe", "JetMoeParallelExperts", "forward", jetmoe_experts, "JetMoeParallelExperts", _GROUPED),
    Override(
        "longcat_flash", "LongcatFlashExperts", "forward", longcat_experts, "LongcatFlashExperts",
        f"{_GROUPED}; zero experts take their share of these rows, as if all experts were taken alike",
    ),
    Override(
        "llama4", "Llama4TextMoe", "forward", llama4_moe, "Llama4TextMoe",
        "experts run on the tokens routed to them, as in engines; its own code here runs every expert on all tokens",
    ),
)  # fmt: skip
