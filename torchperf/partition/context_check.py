"""Which ops of a rank's program mix positions: under context parallelism attention alone may.

The walk looks at forward. Backward is linear in the gradients, so what it sums over positions stays a part of a sum
until the gradients of the parameters are reduced over the ranks, as those of data parallelism are.

free      integers and what is made of them and of constants alone (positions, masks, shifted labels: the loader's
          business), the routing of tokens to experts (each rank routes its own), sums down to one number (the loss),
          a slice behind the last layer (logits without the last)
error     all else that contracts, sorts, scans, softmaxes, indexes, joins or cuts along the sequence, and ops that no
          factor rule knows
"""

from __future__ import annotations

from collections.abc import Iterator

from ..graph.errors import TorchperfError
from ..graph.expr import Expr
from ..graph.graph import Graph
from ..graph.op import Op
from .algebra import Dim, Dims, leaves, size_of
from .factors import Factors, propagate
from .rules import base_name
from .step import OpFactors, is_float

OURS = ("torchperf.attention.default", "torchperf.attention_backward.default")
CUTS = frozenset({
    "slice", "narrow", "select", "unbind", "split", "split_with_sizes", "chunk", "cat", "constant_pad_nd", "pad",
})  # fmt: skip
ROUTING = frozenset({
    "sort", "argsort", "topk", "histc", "bincount", "cumsum", "index", "index_select", "index_put", "index_put_",
    "index_add", "index_add_", "gather", "scatter", "scatter_", "scatter_add", "scatter_add_", "_grouped_mm", "sum",
    "masked_select", "index_copy",
})  # fmt: skip
FLASH = "run it with `--attention flash`, or without `--cp`"


class Sequence:
    """The leaves of the sequences among the inputs, and how long these are on one rank."""

    def __init__(self, factors: Factors) -> None:
        self.leaves: set[int] = set()
        self.lengths: set[int] = set()
        for dim in _input_dims(factors):
            self.leaves |= {id(leaf) for leaf in leaves(dim)}
            self.lengths.add(size_of(dim))

    def inside(self, dims: Dims) -> bool:
        """Whether any of these dims goes along a sequence."""
        return any(id(leaf) in self.leaves for dim in dims for leaf in leaves(dim))

    def whole(self, dim: Dim) -> bool:
        """Whether a dim is as long as a sequence that it goes along; where it was gathered, a part of it is new."""
        return self.inside([dim]) and size_of(dim) in self.lengths


def _input_dims(factors: Factors) -> Iterator[Dim]:
    """The dims of the inputs that are sequences: the second of ids, or what bears the size `seq`."""
    for key, dims in factors.values.items():
        if factors.classes.kind.get(key[0]) != "input":
            continue
        for given in factors.graph.facts.inputs:
            if given.name != factors.classes.name.get(key[0]) or len(given.shape) != len(dims):
                continue
            ids = len(dims) == 2 and given.dtype in ("i64", "i32")
            for j, (size, dim) in enumerate(zip(given.shape, dims, strict=True)):
                if (ids and j == 1) or (isinstance(size, Expr) and str(size) == "seq"):
                    yield dim


def own_attention(op: Op) -> bool:
    """Whether the op is the attention that context parallelism can split."""
    return op.name in OURS


def attends_over(sequence: Sequence, facts: OpFactors) -> bool:
    """Whether keys lie along a sequence that the ranks share; raises TorchperfError for what cannot be split."""
    at = 1 if "backward" in facts.op.name else 0
    queries, keys = facts.inputs[at][2], facts.inputs[at + 1][2]
    if not sequence.inside([keys]):
        return False
    if not sequence.whole(keys) or not sequence.whole(queries):
        text = "attention with keys along the sequence, and queries along something else"
        raise _fault(facts.op, text, "leave out `--cp`")
    bias = next((d for d, n in zip(facts.inputs, facts.op.operands, strict=True) if n == "bias"), [])
    if sequence.inside(list(bias)):
        text = "attention has a bias over positions, which a rank would need of the whole sequence"
        raise _fault(facts.op, text, "a causal, windowed or chunked mask needs no tensor; else leave out `--cp`")
    return True


def check(graph: Graph, factors: Factors | None = None) -> None:
    """Raise TorchperfError for the first op of a rank's graph that needs other ranks' positions, and is not ours.

    graph     bound at one rank's share of the sequence, before or after tensor parallelism
    factors   those of `graph`, where they are known
    """
    factors = propagate(graph) if factors is None else factors
    sequence = Sequence(factors)
    if not sequence.leaves:
        raise TorchperfError(
            "context parallelism needs a sequence", facts=[("inputs", _inputs(graph))], hint="leave out `--cp`"
        )
    experts = _expert_modules(graph)
    data = _data(factors)
    behind = _behind_layers(graph)
    for b, records in enumerate(factors.blocks):
        for facts in records:
            if facts.op.name == OURS[0]:
                attends_over(sequence, facts)
            if facts.op.phase not in ("forward", "recompute") or facts.op.name.startswith("torchperf."):
                continue
            known = factors.classes.of[b]
            if not any(is_float(value) and known[value.slot] in data for value in facts.op.inputs):
                continue
            routing = base_name(facts.op.name) in ROUTING and _within(facts.op.module, experts)
            reason = None if routing else _mixes(sequence, facts, b in behind)
            if reason is not None:
                unfused = "softmax" in facts.op.name or "bmm" in facts.op.name or "attention" in facts.op.name
                raise _fault(facts.op, reason, FLASH if unfused else "leave out `--cp` for this model")


def _mixes(sequence: Sequence, facts: OpFactors, behind: bool) -> str | None:
    """What an op does along the sequence that a rank cannot do with its own positions, or None."""
    op = facts.op
    if not sequence.inside([dim for dims in facts.inputs for dim in dims]):
        return None
    if not facts.known:
        return "no factor rule tells whether it mixes positions"
    if sequence.inside(facts.opaque):
        return "it needs every position of the sequence"
    if sequence.inside([dim for dim, _ in facts.statistic]):
        return "it needs a sum or a maximum over the sequence"
    for value, dims, contracted in zip(op.outputs, facts.outputs, facts.contracted, strict=True):
        if value.numel > 1 and sequence.inside(contracted):
            return "it reads by position" if facts.kind == "lookup" else "it sums over the sequence"
        allowed = behind and base_name(op.name) in ("slice", "narrow")
        if value.numel > 1 and base_name(op.name) in CUTS and not allowed and _cuts(sequence, facts, dims):
            return "it joins or cuts the sequence"
    return None


def _cuts(sequence: Sequence, facts: OpFactors, result: Dims) -> bool:
    """Whether an input has a whole sequence where the result has another length."""
    for value, dims in zip(facts.op.inputs, facts.inputs, strict=True):
        along = [j for j, dim in enumerate(dims) if sequence.whole(dim)]
        if len(dims) != len(result):
            d = int(facts.op.attr("dim", 0)) % max(len(dims), 1)
            if base_name(facts.op.name) in ("select", "unbind") and d in along:
                return True
        elif any(size_of(result[j]) != value.shape[j] for j in along):
            return True
    return False


def _data(factors: Factors) -> set[int]:
    """Classes of the storages that hold parameters, inputs of floating point, or numbers computed from either."""
    kinds = factors.classes.kind
    found = {cls for cls, kind in kinds.items() if kind in ("param", "input")}
    before = -1
    while len(found) > before:
        before = len(found)
        for of, records in zip(factors.classes.of, factors.blocks, strict=True):
            for facts in records:
                if any(is_float(value) and of[value.slot] in found for value in facts.op.inputs):
                    found |= {of[value.slot] for value in facts.op.outputs}
    return found


def _expert_modules(graph: Graph) -> set[str]:
    """Modules of products over experts, and those that hold them where these are no whole layer."""
    found = set()
    for block in graph.blocks:
        for op in block.ops:
            if base_name(op.name) == "_grouped_mm":
                parent = op.module.rpartition(".")[0]
                found.add(parent if parent and parent != block.module else op.module)
    return found


def _within(module: str, modules: set[str]) -> bool:
    return any(module == outer or module.startswith(outer + ".") for outer in modules)


def _behind_layers(graph: Graph) -> set[int]:
    """Blocks that run in forward behind the last repeated layer only: the head and the loss."""
    forward = [s for s in graph.segments if graph.blocks[s.block].phase in ("forward", "recompute")]
    last = max((i for i, s in enumerate(forward) if s.module), default=-1)
    return {s.block for s in forward[last + 1 :]} - {s.block for s in forward[: last + 1]}


def _inputs(graph: Graph) -> str:
    return ", ".join(f"{i.name} [{', '.join(map(str, i.shape))}]" for i in graph.facts.inputs) or "none"


def _fault(op: Op, reason: str, hint: str) -> TorchperfError:
    where = f"`{op.name}` in `{op.module}`, {op.phase}" if op.module else f"`{op.name}`, {op.phase}"
    return TorchperfError(
        f"`{op.name}` is not what a rank of context parallelism runs: {reason}", facts=[("op", where)], hint=hint
    )
