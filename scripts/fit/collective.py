"""Constants of collectives from measured rows: one set per (interconnect, library, collective), ranks in the formula.

all_gather and reduce_scatter move the same bytes in the same steps: one set. What each set is and how it is found:
collective_sets.py. Errors are those of each row under constants that did not see its third of the rows.
"""

from __future__ import annotations

import hashlib
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from collective_sets import CUSTOM_BYTES, SWITCHED, Sets, custom, eager, nccl, network, pairs, traced

from torchperf.graph.system import Fit, Interconnect
from torchperf.validate.collective_rows import Case, case, links_of, predict

FOLDS = 3
BIBLIOGRAPHY = {"aiconfigurator": "aiconfigurator", "vidur": "vidur", "NVIDIA/nccl-tests/issues/119": "ncclt119"}
GROUPS = (("all_reduce",), ("all_gather", "reduce_scatter"), ("all_to_all",))
SAME_AS = {"nvlink5-nvl72": "nvlink5"}  # the same links under another host: one set, but for its launch


def fold(row: Case) -> int:
    """Which third a row falls in, by its collective, ranks and size: all links and libraries of one shape together."""
    digest = hashlib.sha256(f"{row.kind},{row.ranks},{row.nbytes}".encode()).hexdigest()
    return int(digest, 16) % FOLDS


def constants(rows: Sequence[Case], links: Mapping[str, Interconnect]) -> Sets:
    """Every set that these rows determine."""
    sets: Sets = {}

    def of(link: str, library: str, kinds: Iterable[str], nodes: bool = False) -> list[Case]:
        return [
            r for r in rows if r.kind in kinds and r.library == library
            and (r.outside == link if nodes else (r.link == link and not r.outside))
        ]  # fmt: skip

    for name in sorted({row.link for row in rows} - set(SAME_AS)):
        link = links[name]
        twins = [twin for twin, base in SAME_AS.items() if base == name]
        for kinds in GROUPS:
            own, more = of(name, "nccl", kinds), [r for twin in twins for r in of(twin, "nccl", kinds)]
            if len(own) < 8:
                continue
            found, launch = nccl(kinds[0], own + more, link, [False] * len(own) + [True] * len(more))
            for kind in kinds:
                sets[name, f"{kind}.nccl"] = found
                for twin in twins:
                    sets[twin, f"{kind}.nccl"] = found | {"alpha": found.get("alpha", 0.0) + launch}
    own_kernels = {}
    for name, library in itertools.product(SWITCHED, ("vllm_graph", "trtllm")):
        small = [row for row in of(name, library, ("all_reduce",)) if row.nbytes < CUSTOM_BYTES]
        if small:
            own_kernels[name, library] = small
    sets |= custom(own_kernels, links) if own_kernels else {}
    given = applied(links, sets)
    for name in sorted({row.link for row in rows if row.library == "vllm_eager"}):
        graph = sets.get((name, "all_reduce.vllm_graph")) or sets[name, "all_reduce.nccl"]
        own = of(name, "vllm_eager", ("all_reduce",))
        sets[name, "all_reduce.vllm_eager"] = eager(own, graph, _as("vllm_graph", given))
    for name in sorted({row.link for row in rows}):
        own = of(name, "nccl_kernel", ("all_reduce",))
        owners = (name, *links[name].fits_from)
        base = next((sets[o, "all_reduce.nccl"] for o in owners if (o, "all_reduce.nccl") in sets), None)
        if len(own) >= 3 and base:
            sets[name, "all_reduce.nccl_kernel"] = traced(own, base, links[name])
    messages = {name: of(name, "nccl_kernel", ("p2p",)) for name in sorted({row.link for row in rows})}
    sets |= pairs({name: own for name, own in messages.items() if len(own) >= 3}, links)
    given = applied(links, sets)
    for name in sorted({row.outside for row in rows if row.outside}):
        for library in ("nccl", "nccl_kernel"):
            for kind in ("all_reduce", "p2p"):
                own = of(name, library, (kind,), nodes=True)
                if len(own) >= 3 and max(row.nbytes for row in own) > CUSTOM_BYTES:  # else no rate in them
                    sets[name, f"{kind}.{library}"] = network(kind, own, links[name], _inner(given))
    return sets


def _as(library: str, links: Mapping[str, Interconnect]) -> Callable[[Case], float]:
    return lambda row: predict(replace(row, library=library), links).seconds


def _inner(links: Mapping[str, Interconnect]) -> Callable[[Case], float]:
    def inside(row: Case) -> float:
        return 0.0 if row.kind == "p2p" else predict(replace(row, outside="", nodes=1), links).seconds

    return inside


def applied(links: Mapping[str, Interconnect], sets: Sets) -> dict[str, Interconnect]:
    """The links with these sets as their fits: their own, then those of the links they name in `fits_from`."""
    fits: dict[str, dict[str, Fit]] = {name: {} for name in links}
    for name, link in links.items():
        for owner in (name, *link.fits_from):
            for (other, key), found in sets.items():
                if other == owner:
                    one = Fit(f"collective.{key}", tuple(found.items()), "", "", 0.0, 0.0, "aiconfigurator")
                    fits[name].setdefault(key, one)
    return {name: replace(link, fits=tuple(fits[name].values())) for name, link in links.items()}


def cross_validated(rows: Sequence[Case], links: Mapping[str, Interconnect]) -> list[float]:
    """predicted / measured - 1 of each row, by constants that did not see its third."""
    errors = [0.0] * len(rows)
    for third in range(FOLDS):
        seen = applied(links, constants([row for row in rows if fold(row) != third], links))
        for i, row in enumerate(rows):
            if fold(row) == third:
                errors[i] = predict(row, seen).seconds / row.seconds - 1
    return errors


def fit(rows: Iterable[Mapping[str, str]]) -> dict[str, dict[str, dict[str, Any]]]:
    """interconnect -> key -> table of hardware_db/fits/collective, from rows of a collectives file."""
    cases = [found for found in map(case, rows) if isinstance(found, Case)]
    links = links_of({row.link for row in cases} | {row.outside for row in cases if row.outside})
    errors = cross_validated(cases, links)
    tables: dict[str, dict[str, dict[str, Any]]] = {}
    for (name, key), found in sorted(constants(cases, links).items()):
        kind, library = key.split(".")
        own = [
            (row, abs(error)) for row, error in zip(cases, errors, strict=True)
            if row.kind == kind and row.library == library and name == (row.outside or row.link)
        ]  # fmt: skip
        sizes, ranks = [row.nbytes for row, _ in own], [row.ranks for row, _ in own]
        sources = Counter(row.source for row, _ in own)
        median, p90 = np.quantile([error for _, error in own], [0.5, 0.9])
        tables.setdefault(name, {})[key] = {
            "parameters": {name: float(f"{value:.5g}") for name, value in found.items()},
            "rows": f"{len(own)} rows of {sources.most_common(1)[0][0]}{_beside(name, kind, library, sources)}",
            "range": f"{min(ranks)} to {max(ranks)} ranks, {min(sizes)} to {max(sizes)} B",
            "median_error": round(float(median), 4),
            "p90_error": round(float(p90), 4),
            "source": BIBLIOGRAPHY[sources.most_common(1)[0][0].split()[0]],
            "basis": "fitted",
        }
    return tables


def _beside(name: str, kind: str, library: str, sources: Mapping[str, int]) -> str:
    """What the count of a set's own rows leaves out: other sources, and rows it was fitted together with."""
    others = sorted(sources, key=lambda source: -sources[source])[1:]
    text = f" and {', '.join(others)}" if others else ""
    together = [other for group in GROUPS if kind in group and library == "nccl" for other in group if other != kind]
    together += [
        link for pair in SAME_AS.items() if name in pair and library == "nccl" for link in pair if link != name
    ]
    if library in ("vllm_graph", "trtllm"):
        together = ["the libraries' own kernels on the other links"]
    return text + (f", fitted with {' and '.join(together)}" if together else "")
