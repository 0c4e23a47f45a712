"""One block: pointwise ops, normalisations and row reductions that follow each other become one kernel.

As torch.compile's inductor does: an op joins the kernel of what it reads where both walk the same elements (or one
walks rows of the other), or the kernel of an op that reads the same, where no op outside stands between the two.
Contractions, attention, sorts, scatters and reductions over rows stay kernels of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ..graph.graph import Block
from ..graph.op import Op
from ..graph.tensor import Value
from ..graph.work import Work

FUSIBLE = frozenset({"pointwise", "dropout", "norm", "softmax", "loss", "reduction", "copy", "create"})
FUSED = "torchperf.fused"


@dataclass(slots=True)
class _Kernel:
    """Members by index, and the number of elements that the kernel walks."""

    members: list[int]
    domain: int
    fusible: bool
    needs: set[int] = field(default_factory=set)  # ops that members wait for, members left out


def group(block: Block, works: Sequence[Work], escaping: frozenset[int]) -> Block:
    """The block with its chains fused. `escaping` are the slots that other segments use."""
    live = [i for i, work in enumerate(works) if work.kind != "view"]
    needs = _dependencies(block, live)
    kernel_of: dict[int, _Kernel] = {}
    readers: dict[int, list[int]] = {}
    for i in live:
        op = block.ops[i]
        mine = _Kernel([i], _domain(op), _may_fuse(op, works[i]), set(needs[i]))
        kernel_of[i] = mine
        if not mine.fusible:
            continue
        beside = {j for value in op.inputs for j in readers.get(value.slot, ()) if value.numel == mine.domain}
        for value in op.inputs:
            readers.setdefault(value.slot, []).append(i)
        for j in (*sorted(needs[i], reverse=True), *sorted(beside - needs[i], reverse=True)):
            other, mine = kernel_of[j], kernel_of[i]
            if other is mine or not other.fusible:
                continue
            alike = _fits(mine.domain, other.domain) if j in needs[i] else mine.domain == other.domain
            if alike and not _between(mine, other, kernel_of):
                _merge(mine, other, kernel_of)
    return _emit(block, kernel_of, works, escaping)


def _may_fuse(op: Op, work: Work) -> bool:
    if work.kind not in FUSIBLE or not op.outputs:
        return False
    if work.kind == "reduction":  # over rows, not over the leading dims
        source, out = op.inputs[0], op.outputs[0]
        return bool(source.shape) and bool(out.shape) and out.shape[-1] != source.shape[-1]
    return True


def _domain(op: Op) -> int:
    return max((v.numel for v in (*op.inputs, *op.outputs)), default=0)


def _fits(a: int, b: int) -> bool:
    low, high = min(a, b), max(a, b)
    return low > 0 and high % low == 0 and high // low <= 2**17


def _dependencies(block: Block, live: Sequence[int]) -> dict[int, set[int]]:
    """For each op the ops that must come before it: writers of what it reads, users of what it writes."""
    writer: dict[int, int] = {}
    readers: dict[int, list[int]] = {}
    needs: dict[int, set[int]] = {}
    for i in live:
        op = block.ops[i]
        found: set[int] = set()
        for value in op.inputs:
            if value.slot in writer:
                found.add(writer[value.slot])
            readers.setdefault(value.slot, []).append(i)
        for value in op.outputs:
            if value.slot in writer:
                found.add(writer[value.slot])
            found.update(readers.get(value.slot, ()))
        for value in op.outputs:
            writer[value.slot] = i
            readers[value.slot] = []
        found.discard(i)
        needs[i] = found
    return needs


def _between(late: _Kernel, early: _Kernel, kernel_of: dict[int, _Kernel]) -> bool:
    """Whether a kernel outside waits for one of the two and is waited for by the other."""
    both = {id(late), id(early)}
    first = min(early.members[0], late.members[0])
    seen: set[int] = set()
    stack = [kernel_of[j] for k in (late, early) for j in k.needs if j in kernel_of]
    while stack:
        kernel = stack.pop()
        if id(kernel) in both or id(kernel) in seen or kernel.members[-1] < first:
            continue
        seen.add(id(kernel))
        for j in kernel.needs:
            after = kernel_of[j]
            if id(after) in both:
                return True
            stack.append(after)
    return False


def _merge(late: _Kernel, early: _Kernel, kernel_of: dict[int, _Kernel]) -> None:
    early.members = sorted((*early.members, *late.members))
    early.domain = max(early.domain, late.domain)
    early.needs = (early.needs | late.needs) - set(early.members)
    for i in late.members:
        kernel_of[i] = early


def _emit(block: Block, kernel_of: dict[int, _Kernel], works: Sequence[Work], escaping: frozenset[int]) -> Block:
    kernels = {id(k): k for k in kernel_of.values()}
    order = _sorted(list(kernels.values()), kernel_of)
    users: dict[int, set[int]] = {}
    for i, kernel in kernel_of.items():
        for value in block.ops[i].inputs:
            users.setdefault(value.slot, set()).add(id(kernel))
    ops: list[Op] = []
    for kernel in order:
        members = [block.ops[i] for i in kernel.members]
        if not kernel.fusible:
            ops += members
            continue
        ops.append(fused(members, lambda slot, k=kernel: slot in escaping or users.get(slot, set()) - {id(k)}))
    return Block(block.module, block.phase, block.storages, tuple(ops))


def fused(members: Sequence[Op], leaves: object) -> Op:
    """One kernel for `members`; `leaves(slot)` tells whether something outside reads that slot."""
    made: set[int] = set()
    inputs: dict[Value, str] = {}
    outputs: dict[int, list[Value]] = {}
    for op in members:
        for value in op.inputs:
            if value.slot not in made:
                inputs.setdefault(value, f"in{len(inputs)}")
        for value in op.outputs:
            made.add(value.slot)
            known = outputs.setdefault(value.slot, [])
            if not any(_covers(other, value) for other in known):
                known[:] = [*(other for other in known if not _covers(value, other)), value]
    kept = tuple(v for slot, written in outputs.items() if leaves(slot) for v in written)  # type: ignore[operator]
    modules = [op.module for op in members]
    main = max(modules, key=modules.count)  # of equals the first
    return Op(FUSED, members[0].phase, main, tuple(inputs.values()), tuple(inputs), kept, (), tuple(_flat(members)))


def _covers(a: Value, b: Value) -> bool:
    """Whether writing `a` writes all of `b`, in the same storage."""

    def end(v: Value) -> int:
        shape, strides = [int(d) for d in v.shape], [int(n) for n in v.strides]  # type: ignore[arg-type]
        return int(v.offset) + sum((d - 1) * n for d, n in zip(shape, strides, strict=True))  # type: ignore[arg-type]

    starts_before = int(a.offset) <= int(b.offset)  # type: ignore[arg-type]
    return starts_before and end(a) >= end(b) and a.nbytes >= b.nbytes


def _flat(members: Sequence[Op]) -> list[Op]:
    return [part for op in members for part in (op.parts or (op,))]


def _sorted(kernels: list[_Kernel], kernel_of: dict[int, _Kernel]) -> list[_Kernel]:
    """Kernels so that each comes after what it waits for, otherwise in the order of their last op."""
    done: set[int] = set()
    order: list[_Kernel] = []
    for root in sorted(kernels, key=lambda k: k.members[-1]):
        stack = [(root, False)]
        while stack:
            kernel, ready = stack.pop()
            if id(kernel) in done:
                continue
            if ready:
                done.add(id(kernel))
                order.append(kernel)
                continue
            stack.append((kernel, True))
            waits = {id(kernel_of[j]): kernel_of[j] for j in kernel.needs}
            stack += [(k, False) for k in sorted(waits.values(), key=lambda k: -k.members[-1]) if id(k) not in done]
    return order


def without_dead_outputs(op: Op, dead: frozenset[int]) -> Op:
    """A kernel that no longer writes the slots of `dead`."""
    return replace(op, outputs=tuple(v for v in op.outputs if v.slot not in dead))
