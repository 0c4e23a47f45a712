"""MFU and HFU in each convention that the field uses, each named: they differ by up to 20 % on one run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .graph.estimate import Flops, Mfu
from .graph.graph import Graph
from .graph.op import Op
from .graph.work import Work, Works

NONCAUSAL = "non-causal, without input embedding: 6 (N - N_embedding) + 12 L H D S"
CAUSAL = "causal: 6 (N - N_embedding) + 6 L H D S"
PALM = "non-causal, with input embedding (PaLM): 6 N + 12 L H D S"
COUNTED = "counted from the graph: matmuls of forward and backward, the pairs that attention's mask leaves"
HARDWARE = "counted from the graph, with what is recomputed"
PUBLISHED = "published: 4/3 of the non-causal MFU under full recompute"


def flops_of(graph: Graph, works: Works, of: Callable[[Work], int]) -> Flops:
    """FLOPs of the matrix engine by phase."""
    sums = dict.fromkeys(("forward", "backward", "recompute", "optimizer"), 0)
    for count, block, row in zip(graph.counts, graph.blocks, works, strict=True):
        sums[block.phase] += count * sum(of(work) for work in row if work.engine == "matrix")
    return Flops(sums["forward"], sums["backward"], sums["recompute"])


@dataclass(frozen=True, slots=True)
class Active:
    """Parameters that a token meets. `embedding` are those read by lookup alone, `idle` experts not chosen."""

    total: int
    embedding: int
    idle: int


def active_parameters(graph: Graph, tokens: int) -> Active:
    """Counted from the recorded ops: lookups, contractions, and the rows that each group of experts gets."""
    numel = {name: p.numel for p in graph.facts.parameters for name in p.names}
    canonical = {name: p.names[0] for p in graph.facts.parameters for name in p.names}
    looked_up: dict[str, int] = {}
    multiplied: set[str] = set()
    idle: dict[str, float] = {}
    experts = {
        op.inputs[1].shape[0] for op, _ in graph.ops() if "_grouped_mm" in op.name and len(op.inputs[1].shape) == 3
    }
    for segment in graph.segments:
        block = graph.blocks[segment.block]
        if block.phase != "forward":
            continue
        for op in _parts(block.ops):
            for operand, value in zip(op.operands, op.inputs, strict=True):
                storage = block.storages[value.slot]
                if storage.kind != "param" or storage.name is None:
                    continue
                name = _named(storage.name, segment.module)
                key = canonical.get(name, name)
                if op.name.startswith(("aten.embedding.", "aten.embedding_bag", "aten._embedding_bag")):
                    looked_up[key] = numel.get(name, 0)
                elif op.name.startswith("aten.index.") and operand == "self" and len(value.shape) > 1:
                    if value.shape[0] in experts:  # biases of experts, by row
                        share = min(1.0, op.outputs[0].numel / (tokens * value.numel))
                        idle[key] = numel.get(name, 0) * (1 - share)
                    else:
                        looked_up[key] = numel.get(name, 0)
                elif op.name.startswith(("aten.mm", "aten.addmm", "aten.bmm", "aten.baddbmm", "aten._grouped_mm")):
                    multiplied.add(key)
                    if "_grouped_mm" in op.name and operand == "mat2" and len(value.shape) == 3:
                        rows, groups = int(op.inputs[0].shape[0]), int(value.shape[0])  # type: ignore[arg-type]
                        share = min(1.0, rows / (tokens * groups))
                        idle[key] = numel.get(name, 0) * (1 - share)
    embedding = sum(n for key, n in looked_up.items() if key not in multiplied)
    return Active(sum(p.numel for p in graph.facts.parameters), embedding, round(sum(idle.values())))


def _parts(ops: Sequence[Op]) -> list[Op]:
    return [piece for op in ops for piece in (_parts(op.parts) if op.parts else [op])]


def _named(name: str, layer: str) -> str:
    """`model.layers.*.mlp.weight` of layer `model.layers.3`."""
    parent = layer.rpartition(".")[0]
    return name.replace(f"{parent}.*", layer, 1) if layer and name.startswith(f"{parent}.*") else name


def conventions(
    graph: Graph, flops: Flops, core: int, tokens: int, tokens_per_s: float, peak_flops_per_s: float,
) -> tuple[tuple[Mfu, ...], tuple[Mfu, ...]]:  # fmt: skip
    """(MFU, HFU) rows of a run of `tokens_per_s` on a device of `peak_flops_per_s`.

    core   non-causal FLOPs of attention in one step of `tokens` tokens
    """

    def row(convention: str, per_token: float) -> Mfu:
        return Mfu(convention, per_token, per_token * tokens_per_s / peak_flops_per_s)

    recomputes = flops.recompute > 0
    hfu = [row(HARDWARE, flops.hardware / tokens)]
    frozen = any(not p.trainable for p in graph.facts.parameters)
    if graph.facts.mode != "train" or frozen or graph.size("seq") is None:
        return (row(COUNTED, flops.model / tokens),), tuple(hfu)
    active = active_parameters(graph, tokens)
    attention = core / tokens
    n = active.total - active.idle
    mfu = (
        row(NONCAUSAL, 6 * (n - active.embedding) + attention),
        row(CAUSAL, 6 * (n - active.embedding) + attention / 2),
        row(PALM, 6 * n + attention),
        row(COUNTED, flops.model / tokens),
    )
    if recomputes:
        hfu.append(row(PUBLISHED, 4 / 3 * mfu[0].flops_per_token))
    return mfu, tuple(hfu)
