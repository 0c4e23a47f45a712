"""Data parallelism once a step: gradients summed over the replicas, sharded optimizer states, gathered weights.

    zero 0     all_reduce of the gradients
    zero 1, 2  reduce_scatter of the gradients (2: of each micro-batch), all_gather of the updated weights
    zero 3     in the program itself (fully_sharded); here only the sum between copies of the shards
    hybrid     over a group of `dp_shard` ranks, then an all_reduce of the shards between groups
    dualpipe   then an all_reduce between the two pipeline ranks that hold the same stages

Context-parallel ranks hold the same weights and other tokens: they belong to the group. Of experts, the ranks that
share them hold different ones: their group is smaller by `ep`.

Source: [rajbhandari2020] ZeRO; Megatron-LM's distributed optimizer; PyTorch DDP and FSDP (hybrid sharding).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..graph.dtype import bits
from ..graph.graph import Block, Parameter
from ..graph.op import Attr, Op
from ..graph.plan import Plan
from ..graph.tensor import Storage, Value
from .fully_sharded import Group, Sharding


@dataclass(frozen=True, slots=True)
class Groups:
    """The ranks that hold the same parameters: `shard` splits the states, `replicate` copies them."""

    shard: Group
    replicate: Group

    @property
    def ranks(self) -> int:
        return self.shard.ranks * self.replicate.ranks


def groups(plan: Plan, experts: bool = False) -> Groups:
    """The groups of a resolved plan, for ordinary or for expert parameters."""
    stride, shard = plan.tp, plan.dp_shard * plan.cp
    if not experts:
        return Groups(Group(shard, stride), Group(plan.replicate, stride * shard))
    held = plan.expert_tp * plan.ep  # ranks that hold the experts once
    inside = min(held, shard * plan.tp)  # they take the ranks of one copy of the states first
    own, copies = shard * plan.tp // inside, plan.replicate // (held // inside)
    return Groups(Group(own, held), Group(copies, held * own))


@dataclass(frozen=True, slots=True)
class GradientSync:
    """Collectives once a step. `reduce` may overlap with the last backward, `gather` with the next forward.

    Those of one micro-batch (attribute `micro_batch`, of ZeRO 2) overlap with its own backward.

    numel   gradients that each rank reduces, and weights that it gathers, in elements
    """

    reduce: Block
    gather: Block
    numel: int


def mirror(plan: Plan, rank: int) -> Group | None:
    """The two pipeline ranks that hold the same stages: under DualPipe r and pp - 1 - r, else None.

    Source: DeepSeek-V3, arXiv 2412.19437, section 3.2.1, and github.com/deepseek-ai/DualPipe: parameters 2 x.
    """
    apart = abs(plan.pp - 1 - 2 * rank)
    return Group(2, plan.mesh.stride("pp") * apart) if plan.schedule == "dualpipe" and apart else None


def sharding(plan: Plan, experts: frozenset[str], gather: int = 0) -> Sharding | None:
    """How a plan shards parameters over more than one rank, or None; `gather`: bits of an element as it is gathered."""
    dense = groups(plan).shard
    if plan.zero_stage < 3 or dense.ranks == 1:
        return None
    return Sharding(dense, groups(plan, experts=True).shard, experts, plan.reshard, gather, plan.reduce_dtype)


def gradient_sync(
    parameters: Iterable[Parameter], plan: Plan, expert_names: frozenset[str], bucket: int, weight: str,
    copies: Group | None = None,
) -> GradientSync:  # fmt: skip
    """The collectives that join the replicas of one pipeline rank's parameters.

    bucket   bytes that one collective carries at the least; 0: all of them in one
    weight   dtype in which updated weights are gathered
    copies   pipeline ranks with the same parameters (`mirror`): they sum what data parallelism left each of them
    """
    trained = [p for p in parameters if p.trained]
    reduce, gather = _Step(), _Step()
    total = 0
    for experts in (False, True):
        numel = sum(p.numel for p in trained if (p.names[0] in expert_names) == experts)
        total += numel
        own = groups(plan, experts)
        if not numel:
            continue
        dtype = plan.reduce_dtype
        part = -(-numel // own.shard.ranks)
        if plan.zero_stage == 3:
            reduce.add("all_reduce", part, part, dtype, own.replicate, bucket)
        elif plan.zero_stage == 0:
            whole = Group(own.ranks, own.shard.stride)
            reduce.add("all_reduce", numel, numel, dtype, whole, bucket)
        else:
            times = plan.micro_batches if plan.zero_stage == 2 else 1
            for j in range(times):
                reduce.add("reduce_scatter", numel, part, dtype, own.shard, bucket, j)
            reduce.add("all_reduce", part, part, dtype, own.replicate, bucket)
            gather.add("all_gather", part, numel, weight, own.shard, bucket)
        if copies is not None:
            held = part if plan.zero_stage else numel
            reduce.add("all_reduce", held, held, dtype, copies, bucket, axis="pp")
    return GradientSync(reduce.block(), gather.block(), total)


class _Step:
    """A block of collectives under construction."""

    def __init__(self) -> None:
        self.storages: list[Storage] = []
        self.ops: list[Op] = []

    def add(
        self, kind: str, before: int, after: int, dtype: str, group: Group, bucket: int, micro_batch: int | None = None,
        axis: str = "dp",
    ) -> None:  # fmt: skip
        """The collectives of one kind: `before` and `after` elements in a rank's hands, in buckets."""
        if group.ranks == 1:
            return
        width = bits(dtype) // 8
        count = max(1, max(before, after) * width // bucket) if bucket else 1
        role = "weight" if kind == "all_gather" else "gradient"
        attrs: tuple[tuple[str, Attr], ...] = (
            ("axis", axis), ("ranks", group.ranks), ("stride", group.stride), ("role", role),
        )  # fmt: skip
        if micro_batch is not None:
            attrs = (*attrs, ("micro_batch", micro_batch))
        for i in range(count):
            sizes = [n * (i + 1) // count - n * i // count for n in (before, after)]
            first = len(self.storages)
            self.storages += [Storage(n * width, "grad") for n in sizes]
            source, target = (Value(first + j, dtype, (n,), (1,)) for j, n in enumerate(sizes))
            self.ops.append(Op(f"torchperf.{kind}", "optimizer", "", ("self",), (source,), (target,), attrs))

    def block(self) -> Block:
        return Block("", "optimizer", tuple(self.storages), tuple(self.ops))
