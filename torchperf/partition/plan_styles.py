"""The words of a tensor-parallel plan, and the names that its patterns can match.

A plan maps a module or parameter, `*` for a layer's index, to a style, in the words that transformers uses for
`base_model_tp_plan` (huggingface.co/docs/transformers, "Tensor parallelism"). What a style says of outputs that are
gathered or inputs that are cut (`_rep`, `_gather_output`, `_split_input`, `local_`) is left to placement, which puts a
collective where a value is needed whole: it is the split of the parameter that a style decides.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping

from ..graph.errors import TorchperfError
from ..graph.graph import Graph
from .local import starred

COLWISE = frozenset((
    "colwise", "colwise_rep", "colwise_gather_output", "local_colwise", "packed_colwise", "local_packed_colwise",
    "embedding_colwise",
))  # fmt: skip
ROWWISE = frozenset((
    "rowwise", "rowwise_rep", "rowwise_split_input", "local_rowwise", "packed_rowwise", "local_packed_rowwise",
    "embedding_rowwise",
))  # fmt: skip
EXPERTS = frozenset(("grouped_gemm",))
WHOLE = frozenset(("replicate", "replicated_with_grad_allreduce", "mla_kv_a_proj", "sequence_parallel"))
SAYS_NOTHING = frozenset((  # of a module's outputs or of expert parallelism, not of how a parameter is split
    "all_reduce", "moe_tp_experts", "ep_dispatch_experts", "ep_router", "moe_identity_expert", "gather", "isolated",
    "local", "local_params",
))  # fmt: skip
STYLES = COLWISE | ROWWISE | EXPERTS | WHOLE | SAYS_NOTHING


def parameter_names(graph: Graph) -> dict[str, tuple[str, ...]]:
    """Starred name of a parameter -> all its names, more than one where it is tied."""
    known = starred(graph)
    found: dict[str, tuple[str, ...]] = {}
    for parameter in graph.facts.parameters:
        own = known.get(parameter.storage) or parameter.names[0]
        if own not in found:
            found[own] = (own, *(n for n in parameter.names[1:] if n != own)) if len(parameter.names) > 1 else (own,)
    return found


def matches(pattern: str, name: str) -> bool:
    """Whether a pattern names this parameter or a module above it; `*` stands for one part of the path."""
    asked, own = pattern.split("."), name.split(".")
    return len(asked) <= len(own) and all(
        a == o or a == "*" or (o == "*" and a.isdigit()) for a, o in zip(asked, own, strict=False)
    )


def check(graph: Graph, plan: Mapping[str, str], origin: str = "plan") -> None:
    """Raises TorchperfError, every fault a line, where a style is unknown or a pattern matches nothing."""
    faults: list[tuple[str, str]] = []
    names = [name for every in parameter_names(graph).values() for name in every]
    modules = {op.module for op, _ in graph.ops()}
    for pattern, style in plan.items():
        if style not in STYLES:
            faults.append((pattern, f"no style `{style}`{_nearest(style, STYLES)}"))
        found = [name for name in (*names, *modules) if matches(pattern, name)]
        if not found:
            paths = {".".join(n.split(".")[:k]) for n in names for k in range(1, n.count(".") + 2)}
            faults.append((pattern, f"matches no module or parameter{_nearest(pattern, paths)}"))
        elif not any(_whole_stack(pattern, name) for name in found):
            faults.append((pattern, "its layers run the same program: name them all, with `*`"))
    if faults:
        raise TorchperfError(
            f"`{origin}` does not fit `{graph.facts.model}`",
            facts=faults,
            hint='a plan reads `"model.layers.*.mlp.up_proj" = "colwise"`',
        )


def _whole_stack(pattern: str, name: str) -> bool:
    """Whether the pattern names every layer that a starred name stands for."""
    return all(a == "*" or o != "*" for a, o in zip(pattern.split("."), name.split("."), strict=False))


def _nearest(word: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(word, sorted(known), 3, 0.5)
    return f"; nearest: {', '.join(f'`{c}`' for c in close)}" if close else ""
