"""What a model is, module by module, before any hardware."""

from __future__ import annotations

from .annotate import works as annotated
from .graph.graph import Capture, Graph
from .graph.inspection import Inspection, ModuleRow
from .graph.work import Work
from .hardware import load_runtime
from .pipeline import bound_graph, lower
from .schedule import memory


def inspect(
    model: str | Capture, *, mode: str = "train", seq_len: int | None = None, micro_batch: int | None = None,
    depth: int = 3, precision: str = "bf16-mixed", recompute: str = "none", runtime: str = "eager",
    attention: str = "auto",
) -> Inspection:  # fmt: skip
    """Parameters, FLOPs, bytes and activations of `model` by module, down to `depth` parts of its path.

    FLOPs count the causal triangle; activations are what forward makes and backward reads. Raises TorchperfError.
    """
    graph = bound_graph(model, mode, micro_batch, seq_len)
    program = lower(graph, precision, None, recompute, attention, load_runtime(runtime))
    works = annotated(program)
    rows: dict[str, list[int]] = {}

    def add(path: str, column: int, amount: int) -> None:
        for cut in _prefixes(path, depth):
            rows.setdefault(cut, [0, 0, 0, 0])[column] += amount

    for count, block, row in zip(program.counts, program.blocks, works, strict=True):
        for op, work in zip(block.ops, row, strict=True):
            if work.engine == "matrix":
                column = {"forward": 1, "backward": 2}.get(block.phase)
                if column is not None:
                    add(op.module, column, count * work.flops)
            add(op.module, 3, count * work.nbytes)
    layers = _layers(program)
    for parameter in program.facts.parameters:
        add(_starred(parameter.names[0].rpartition(".")[0], layers), 0, parameter.numel)
    saved = _saved_by_module(program, works)
    for path in saved:
        for cut in _prefixes(path, depth):
            rows.setdefault(cut, [0, 0, 0, 0])
    table = []
    order = sorted(rows, key=lambda path: [(_natural(part)) for part in path.split(".")] if path else [])
    for path in order:
        parameters, forward, backward, nbytes = rows[path]
        held = sum(n for p, n in saved.items() if path == "" or p == path or p.startswith(path + "."))
        table.append(ModuleRow(path, _calls(path, layers), parameters, forward, backward, nbytes, held))
    facts = graph.facts
    return Inspection(
        facts.model, facts.model_class, facts.mode, graph.bound or (), sum(p.numel for p in facts.parameters),
        sum(p.numel for p in facts.parameters if p.trainable), tuple(table), facts.guesses, facts.assumptions,
    )  # fmt: skip


def _prefixes(path: str, depth: int) -> list[str]:
    parts = path.split(".") if path else []
    return ["", *(".".join(parts[:n]) for n in range(1, min(len(parts), depth + ("*" in parts)) + 1))]


def _natural(part: str) -> tuple[int, int, str]:
    return (0, int(part), "") if part.isdigit() else (1, 0, part)


def _layers(graph: Graph) -> dict[str, str]:
    """Path of each folded layer -> its starred path."""
    return {s.module: f"{s.module.rpartition('.')[0]}.*" for s in graph.segments if s.module}


def _starred(path: str, layers: dict[str, str]) -> str:
    prefix = path
    while prefix:
        if prefix in layers:
            return layers[prefix] + path[len(prefix) :]
        prefix = prefix.rpartition(".")[0]
    return path


def _calls(path: str, layers: dict[str, str]) -> int:
    starred = path[: path.index("*") + 1] if "*" in path else ""
    return sum(1 for s in layers.values() if s == starred) if starred else 1


def _saved_by_module(graph: Graph, works: tuple[tuple[Work, ...], ...]) -> dict[str, int]:
    """Bytes of saved storages by the (starred) module that made them."""
    found: dict[str, int] = {}
    for life in memory.saved(graph, works).values():
        segment, i = life.birth
        block = graph.blocks[graph.segments[segment].block]
        found[block.ops[i].module] = found.get(block.ops[i].module, 0) + life.nbytes
    return found
