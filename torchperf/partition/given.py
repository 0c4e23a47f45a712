"""A plan that was given -> the leaves that it splits.

A style splits the outermost leaf of a parameter's output features (colwise), of its input features (rowwise), or its
experts; which dims those are is told by the products and look-ups that read the parameter, not by their order. A fused
weight is split in each of its segments. Every parameter that shares a leaf is split with it.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..graph.errors import TorchperfError
from .algebra import Dim, Dims, Factor, flatten, leaves, show
from .choose import Candidate, candidates, sequence_leaves, split_of
from .expert_local import LocalExperts
from .infer import Inferred, Verdict, cost
from .placement import place
from .plan_styles import COLWISE, EXPERTS, ROWWISE, WHOLE, check, matches, parameter_names
from .prepare import Prepared
from .step import OpFactors

Chosen = list[tuple[str, Factor]]  # (pattern, leaf)


def given(
    prepared: Prepared, ranks: int, plan: Mapping[str, str], *, axis: str = "tp", sequence: bool = False,
    regather: bool = True, norm_gradients: bool = True, local: LocalExperts | None = None,
) -> Inferred:  # fmt: skip
    """The placement of that plan; a `sequence_parallel` style anywhere in it asks for `sequence`.

    local   experts that stay whole: what the plan says of them alone is skipped, and the verdicts say so

    Raises TorchperfError naming pattern and dim where a pattern fits nothing, a leaf does not divide, a parameter that
    the plan keeps whole is split through another, or two patterns split one value twice.
    """
    factors = prepared.factors
    check(factors.graph, plan)
    chosen = _chosen(prepared, plan)
    known = {id(c.leaf): c for c in candidates(factors)}
    skipped = [(p, x) for p, x in chosen if local is not None and local.holds_alone(known[id(x)].uses, x)]
    chosen = [c for c in chosen if c not in skipped]
    along = sequence_leaves(factors) if sequence or "sequence_parallel" in plan.values() else ()
    split = split_of(factors, [leaf for _, leaf in chosen], ranks, axis=axis, sequence=along)
    split.regather, split.norm_gradients = regather, norm_gradients
    if local is not None:
        local.enter(factors, split)
    for pattern, style in plan.items():
        for name, dims in _matched(prepared, pattern).items() if style in WHOLE else ():
            if split.held(dims)[0]:
                raise _kept_whole(pattern, style, name, dims, chosen)
    placement = place(prepared, split)
    if placement.conflicts:
        raise _conflict(prepared, chosen, ranks, placement.conflicts[0])
    verdicts = [Verdict(known.get(id(leaf), Candidate(leaf)), "taken", 0.0, pattern) for pattern, leaf in chosen]
    verdicts += [
        Verdict(known[id(leaf)], "skipped", 0.0, f"{pattern}: experts stay whole") for pattern, leaf in skipped
    ]
    return Inferred(split, placement, cost(placement), verdicts, dict(plan))


def _chosen(prepared: Prepared, plan: Mapping[str, str]) -> Chosen:
    """Each leaf once, with the pattern that named it first."""
    readers = _readers(prepared)
    found: Chosen = []
    seen: set[int] = set()
    for pattern, style in plan.items():
        if style not in COLWISE | ROWWISE | EXPERTS:
            continue
        every = _matched(prepared, pattern)
        wide = {name: dims for name, dims in every.items() if len(dims) > 1} or every
        for name, dims in wide.items():
            side = _side(style, dims, readers.get(_name(name), []))
            outer = [leaf for dim in side for leaf in _outermost(dim)]
            if not outer:
                raise TorchperfError(
                    f"`{pattern}` = `{style}` finds nothing to split in `{name}`",
                    facts=[("parameter", name), ("dims", " x ".join(f"[{show(dim)}]" for dim in dims))],
                    hint="choose another style, or leave the pattern out",
                )
            for leaf in outer:
                if id(leaf) not in seen:
                    seen.add(id(leaf))
                    found.append((pattern, leaf))
    return found


def _matched(prepared: Prepared, pattern: str) -> dict[str, Dims]:
    """The parameters that a pattern names, or that lie under the module that it names."""
    names = parameter_names(prepared.factors.graph)
    known = prepared.factors.parameters
    return {n: dims for n, dims in known.items() if any(matches(pattern, x) for x in names.get(_name(n), ()))}


def _name(label: str) -> str:
    """The starred name in a label of `Factors.parameters`."""
    return label.partition(" ")[0]


def _readers(prepared: Prepared) -> dict[str, list[OpFactors]]:
    """Starred name of a parameter -> the products and look-ups of forward that read it."""
    factors = prepared.factors
    found: dict[str, list[OpFactors]] = {}
    for block, records in zip(factors.graph.blocks, factors.blocks, strict=True):
        for facts in records if block.phase == "forward" else ():
            if facts.kind in ("matmul", "lookup"):
                for value in facts.op.inputs:
                    name = block.storages[value.slot].name
                    if name in factors.parameters and block.storages[value.slot].kind == "param":
                        found.setdefault(name or "", []).append(facts)
    return found


def _side(style: str, dims: Dims, readers: list[OpFactors]) -> list[Dim]:
    """The dims of a parameter that a style splits."""
    table = style.startswith("embedding") or not any(facts.kind == "matmul" for facts in readers)
    inputs: set[int] = set()
    experts: set[int] = set()
    for facts in readers:
        if (facts.kind == "lookup") == table:
            inputs |= {id(leaf) for dim in facts.contracted[0] for leaf in leaves(dim)}
            experts |= {id(leaf) for leaf in leaves(facts.ragged or [])}
    own = [{id(leaf) for leaf in leaves(dim)} for dim in dims]
    if len(dims) == 1:
        return [] if style in EXPERTS else list(dims)
    if style in EXPERTS:
        return [dim for dim, found in zip(dims, own, strict=True) if found & experts]
    if style in ROWWISE:
        return [dim for dim, found in zip(dims, own, strict=True) if found & inputs and not found & experts]
    outputs = [dim for dim, found in zip(dims, own, strict=True) if found and not found & (inputs | experts)]
    return outputs[-1:] if len(readers) == 0 else outputs


def _outermost(dim: Dim) -> list[Factor]:
    """The outermost leaf of a dim; of a sum, that of each segment."""
    flat = flatten(dim)
    if not flat:
        return []
    if flat[0].kind == "sum":
        return [leaf for segment in flat[0].parts for leaf in _outermost(segment)]
    return flat[:1]


def _kept_whole(pattern: str, style: str, name: str, dims: Dims, chosen: Chosen) -> TorchperfError:
    split = {id(leaf): by for by, leaf in chosen}
    d, by = next((d, split[id(leaf)]) for d, dim in enumerate(dims) for leaf in leaves(dim) if id(leaf) in split)
    return TorchperfError(
        f"the plan keeps `{pattern}` whole and splits it through `{by}`",
        facts=[("parameter", name), ("style", style), ("dim", f"{d}: {show(dims[d])}"), ("split by", by)],
        hint=f"leave `{pattern}` out, or `{by}`",
    )


def _conflict(prepared: Prepared, chosen: Chosen, ranks: int, text: str) -> TorchperfError:
    """Name the first pattern with which the plan is no longer legal."""
    factors = prepared.factors
    for n in range(1, len(chosen) + 1):
        conflicts = place(prepared, split_of(factors, [leaf for _, leaf in chosen[:n]], ranks)).conflicts
        if conflicts:
            text = conflicts[0]
            break
    pattern, leaf = chosen[n - 1]
    return TorchperfError(
        f"`{pattern}` cannot be split as the plan says" + (f", beside `{chosen[n - 2][0]}`" if n > 1 else ""),
        facts=[("dim", show([leaf])), ("reason", text)],
        hint="split one of the two another way, or leave it out",
    )
