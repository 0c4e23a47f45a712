"""Which ops of a layer's forward are its norms, its dense MLP, its MoE layer, its up projections: told by what they do.

layernorm       a norm over the layer's width whose result not only an addition reads
mlp             a product of tokens and weights, elementwise work, and the product that alone reads it
shared_experts  the same within a MoE layer
moe             all that runs in the module around the products of experts: router, dispatch, experts, combine
moe_act         what lies between the products of experts
mla_up_proj     products that feed attention, by elementwise work alone, from latents that another product made
core_attn       attention written out
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ..graph.errors import TorchperfError
from ..graph.graph import Block
from ..graph.op import Op
from .attention_pattern import forward_matches
from .recompute_region import is_view

DENSE = ("mm", "addmm", "_scaled_mm")
FUSED_NORMS = ("native_layer_norm", "_fused_rms_norm", "rms_norm")
ATTENTION = (
    "aten._scaled_dot_product", "aten._flash_attention_forward", "aten._efficient_attention_forward",
    "torchperf.attention.",
)  # fmt: skip
MIXING = (  # as many elements as before, yet no elementwise work
    "_softmax", "_safe_softmax", "_log_softmax", "bmm", "baddbmm", "convolution", "cumsum", "sort", "index",
    "index_put", "index_add", "gather", "scatter", "scatter_add", "embedding", *FUSED_NORMS, *DENSE,
)  # fmt: skip
ROOTS = ("rsqrt", "sqrt", "reciprocal")
EXCHANGES = ("all_to_all", "send_recv")  # of context parallelism, between projections and attention
CREATES = ("empty", "new_empty", "zeros", "new_zeros", "full")
PLAIN = ("_to_copy", "clone", "copy", "copy_", "quantise", "amax")  # no activation function


@dataclass(frozen=True, slots=True)
class Group:
    """Ops of one block that run again together.

    whole   all of them do, and what others read of their results is kept, as under `torch.utils.checkpoint`; else what
            they make is forgotten, results too, and only those run that backward needs (output-discarding)
    """

    kind: str
    ops: frozenset[int]
    whole: bool = False


def packet(op: Op) -> str:
    """`aten.mm.default` -> `mm`."""
    return op.name.split(".")[1]


class Flow:
    """Who made what an op of a block reads; views left out."""

    def __init__(self, block: Block) -> None:
        self.block, self.ops = block, block.ops
        self.real = [i for i, op in enumerate(block.ops) if not is_view(op)]
        self.makers: list[tuple[int, ...]] = []  # of each op, the op that made each input, -1 for none of the block
        self.readers: dict[int, set[int]] = {}  # op -> those that read what it made
        last: dict[int, int] = {}
        for i, op in enumerate(block.ops):
            self.makers.append(tuple(last.get(v.slot, -1) for v in op.inputs))
            if is_view(op):
                continue
            for maker in self.makers[i]:
                self.readers.setdefault(maker, set()).add(i)
            last.update({v.slot: i for v in op.outputs})

    def under(self, module: str) -> frozenset[int]:
        """The ops of a module and of those within."""
        return frozenset(i for i in self.real if f"{self.ops[i].module}.".startswith(f"{module}."))

    def above(self, starts: Iterable[int]) -> set[int]:
        """Every op from which these come, themselves included."""
        found: set[int] = set()
        stack = [i for i in starts if i >= 0]
        while stack:
            i = stack.pop()
            if i not in found:
                found.add(i)
                stack += [m for m in self.makers[i] if m >= 0]
        return found

    def below(self, starts: Iterable[int]) -> set[int]:
        """Every op that depends on these, themselves included."""
        found = set(starts)
        for i in self.real:
            if not found.isdisjoint(self.makers[i]):
                found.add(i)
        return found

    def elementwise(self, starts: Iterable[int]) -> tuple[set[int], set[int]]:
        """(ops at which elementwise work towards these begins, that work); -1 among the first: outside the block.

        What multiplies by an inverse root is a norm, and mixes a row. Exchanges between ranks are gone through.
        """
        ends: set[int] = set()
        path: set[int] = set()
        seen: set[int] = set()
        stack = list(starts)
        while stack:
            i = stack.pop()
            if i in seen:
                continue
            seen.add(i)
            op = self.ops[i]
            if i >= 0 and packet(op) in EXCHANGES:
                stack += self.makers[i]
            elif i >= 0 and packet(op).startswith(CREATES):
                path.add(i)
            elif i < 0 or not self._same(i) or self._mixes(i):
                ends.add(i)
            else:
                path.add(i)
                stack += self._same(i)
        return ends, path

    def _same(self, i: int) -> list[int]:
        """The makers of what an elementwise op takes element by element."""
        op, found = self.ops[i], []
        for value, maker in zip(op.inputs, self.makers[i], strict=True):
            given = maker < 0 and self.block.storages[value.slot].kind != "activation"
            if not given and (value.numel == op.outputs[0].numel or packet(op) == "cat"):
                found.append(maker)
        return found

    def _mixes(self, i: int) -> bool:
        op = self.ops[i]
        roots = any(m >= 0 and packet(self.ops[m]) in ROOTS for m in self.makers[i])
        return roots or packet(op).rstrip("_") in MIXING or op.name.startswith(ATTENTION) or bool(op.attr("axis"))


def groups(block: Block) -> tuple[Group, ...]:
    """Every group of a forward block, of all kinds."""
    flow = Flow(block)
    dense = frozenset(i for i in flow.real if packet(flow.ops[i]) in DENSE)
    experts = _experts(flow)
    region = _moe(flow, experts)
    found = [*_norms(flow), *_mlps(flow, dense, region), *_up_projections(flow, dense)]
    found += [Group("core_attn", m.removed - {m.at}) for m in forward_matches(block).values()]
    if experts:
        between = flow.below(experts) & flow.above(experts) - experts
        found.append(Group("moe_act", frozenset(between)))
        found.append(Group("moe", region, whole=True))
    return tuple(group for group in found if group.ops)


def _experts(flow: Flow) -> frozenset[int]:
    """Products of rows and experts' weights."""

    def weights(op: Op) -> bool:
        return any(len(v.shape) == 3 and flow.block.storages[v.slot].kind == "param" for v in op.inputs)

    return frozenset(
        i
        for i in flow.real
        if "grouped_mm" in flow.ops[i].name or (packet(flow.ops[i]) in ("bmm", "baddbmm") and weights(flow.ops[i]))
    )


def _moe(flow: Flow, experts: frozenset[int]) -> frozenset[int]:
    """What runs in the module around experts, and the sums over ranks of its results; none where that is the layer."""
    found: set[int] = set()
    for module in {flow.ops[i].module for i in experts}:
        around = module.rpartition(".")[0] if module != flow.block.module else module
        found |= flow.under(around) if around != flow.block.module else set()
    return frozenset(_with_sums(flow, found))


def _with_sums(flow: Flow, ops: set[int]) -> set[int]:
    """With the collectives that read nothing but what these make."""
    more = {i for i in flow.real if flow.ops[i].name.startswith("torchperf.") and flow.ops[i].attr("axis")}
    return ops | {i for i in more if ops.issuperset(flow.makers[i])}


def _norms(flow: Flow) -> Iterator[Group]:
    """Norms over the layer's width: one op, or all of a module with an `rsqrt`."""
    width = _width(flow)
    seen: set[frozenset[int]] = set()
    for i in flow.real:
        op = flow.ops[i]
        fused = packet(op) in FUSED_NORMS
        if not fused and (packet(op) != "rsqrt" or op.module == flow.block.module):
            continue
        ops = frozenset({i}) if op.module == flow.block.module else flow.under(op.module)
        ops = frozenset(j for j in ops if not flow.ops[j].attr("axis"))
        if ops in seen or width not in {v.shape[-1] for j in ops for v in flow.ops[j].outputs if v.shape}:
            continue
        seen.add(ops)
        outside = {j for k in ops for j in flow.readers.get(k, ()) if j not in ops}
        if any(packet(flow.ops[j]) not in ("add", "add_") for j in outside):
            yield Group("layernorm", ops)


def _width(flow: Flow) -> object:
    """The last dim of the first activation that the layer is given."""
    for op, makers in zip(flow.ops, flow.makers, strict=True):
        for value, maker in zip(op.inputs, makers, strict=True):
            if maker < 0 and len(value.shape) > 1 and flow.block.storages[value.slot].kind == "activation":
                return value.shape[-1]
    return None


def _mlps(flow: Flow, dense: frozenset[int], moe: frozenset[int]) -> Iterator[Group]:
    """Products joined by elementwise work, what gathers or casts their input, and the sum over ranks of the result."""
    for i in sorted(dense):
        ends, path = flow.elementwise([flow.makers[i][-2]])
        real = {j for j in path if packet(flow.ops[j]) not in PLAIN}
        if not ends or not real or not ends <= dense:
            continue
        ops = {i} | ends | path
        stack = [flow.makers[j][-2] for j in ends]
        while stack:
            j = stack.pop()
            if j >= 0 and j not in ops and flow.ops[j].name.startswith("torchperf."):
                ops.add(j)
                stack += flow.makers[j]
        yield Group("shared_experts" if i in moe else "mlp", frozenset(_with_sums(flow, ops)), whole=True)


def _up_projections(flow: Flow, dense: frozenset[int]) -> Iterator[Group]:
    """From latents to q, k and v, with the rotation of what turns with its position."""
    anchors = [(flow.ops[i].module, flow.makers[i]) for i in flow.real if flow.ops[i].name.startswith(ATTENTION)]
    for match in forward_matches(flow.block).values():
        outside = {m for i in match.removed for m in flow.makers[i] if m not in match.removed}
        anchors.append((match.op.module, tuple(outside)))
    for module, makers in anchors:
        ends, path = flow.elementwise(makers)
        inside = dense & flow.under(module)
        before = {i: (flow.above(flow.makers[i]) - {i}) & inside for i in ends & inside}
        latent = {i for i, found in before.items() if found}
        down = set().union(*before.values())
        if latent:
            yield Group("mla_up_proj", frozenset((set(before) - down) | path))


def lacking(kind: str) -> TorchperfError:
    """The error for a kind that no layer has."""
    what = {
        "moe": "no module around products of experts", "moe_act": "no products of experts",
        "shared_experts": "no products joined by elementwise work beside experts",
        "mlp": "no products joined by elementwise work outside experts",
        "mla_up_proj": "no attention whose keys and values come from latents",
        "layernorm": "no norm over the width of a layer, as one op or in a module of its own",
    }  # fmt: skip
    return TorchperfError(
        f"no layer has a `{kind}` to run again",
        facts=[("flag", f"--recompute modules:{kind}"), ("found", what[kind])],
        hint=f"leave out `{kind}`",
    )
