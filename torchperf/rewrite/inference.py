"""A program as an engine serves it: weights and cache in fewer bits, and how many experts a batch meets.

Linear layers inside the repeated blocks are quantised, experts too, or experts alone where the format says so.
Embedding, head (unless the format has it), routers and norms stay as they are, and so do the absorbed projections of
latent attention, which engines keep in 16 bits. Bound programs only; run it after the partition, so that what is
quantised are a device's own weights.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from ..graph.errors import TorchperfError
from ..graph.graph import Graph, Parameter
from ..graph.op import Op
from .inference_block import Quantised, Rewriter

EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
PER_TOKEN = ("num_experts_per_tok", "num_experts_per_token", "moe_top_k", "moe_topk", "top_k_experts")


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """How weights are kept.

    dtype       of an element
    group       elements of a row that share one scale; 0: one for each output channel, -1: one for the tensor
    scale       dtype of a scale; zero_bits of a zero point beside it
    activations dtypes that its products can run in, the first by default
    source      where the layout is published
    only        experts: no other layer is quantised; "": every layer is
    head        the output head is quantised too, where it has a weight of its own
    """

    dtype: str
    group: int
    scale: str
    zero_bits: int
    activations: tuple[str, ...]
    source: str
    only: str = ""
    head: bool = False


FORMATS = {
    "fp8": WeightFormat("fp8", -1, "fp32", 0, ("fp8", "bf16"), "arXiv 2209.05433; one scale for the tensor"),
    "int8": WeightFormat("i8", 0, "fp32", 0, ("bf16", "int8"), "arXiv 2211.10438 (SmoothQuant), per channel"),
    "int4": WeightFormat("i4", 128, "fp16", 4, ("bf16", "fp8", "int8"), "arXiv 2306.00978 (AWQ), w4 g128"),
    "int4-g32": WeightFormat(
        "i4", 32, "bf16", 16, ("bf16",), "gpt-fast quantize.py: groups of 32, scale and zero bf16"
    ),
    "q4_k_m": WeightFormat(
        "i4", 32, "fp16", 8, ("bf16",), "llama.cpp, quantize: Q4_K and Q6_K in turn, 4.8 bits in the mean", head=True
    ),
    "nvfp4": WeightFormat("fp4", 16, "fp8", 0, ("fp4", "fp8", "bf16"), "NVIDIA, Introducing NVFP4 (2025)"),
    "mxfp4": WeightFormat("fp4", 32, "e8m0", 0, ("bf16", "fp8", "fp4"), "OCP Microscaling Formats v1.0, table 1"),
    "nvfp4-experts": WeightFormat(
        "fp4", 16, "fp8", 0, ("fp4", "fp8", "bf16"), "nvidia/DeepSeek-R1-FP4: hf_quant_config.json", only="experts"
    ),
    "mxfp4-experts": WeightFormat(
        "fp4", 32, "e8m0", 0, ("bf16", "fp8", "fp4"), "openai/gpt-oss-120b: config.json", only="experts"
    ),
}
ELEMENTS = {"fp8": "fp8", "int8": "i8", "fp4": "fp4"}  # activations narrower than 16 bits
CACHES = {"fp8": "fp8", "int8": "i8", "int4": "i4"}  # the integers with a scale and a zero point a token and head
WHOLE = ("bf16", "fp16")
CACHE_SCALE_BITS = 32  # fp16 scale and zero point (LMDeploy, INT4/INT8 KV cache)


def quantise(graph: Graph, weights: str = "bf16", activations: str | None = None, kv: str = "bf16") -> Graph:
    """The program with `weights`, `activations` and `kv` in these formats, and experts as a batch meets them.

    weights      bf16 | fp16, or a key of FORMATS
    activations  of the quantised layers: bf16 | fp16 | fp8 | int8 | fp4; None takes what the weights go with
    kv           bf16 | fp16 | fp8 | int8 | int4
    Raises TorchperfError on an unknown name or a pair that no kernel runs.
    """
    form, element = formats(weights, activations)
    graph = routed(graph)
    if form is not None:
        graph = _each(graph, lambda rewriter, op: rewriter.product(op), _quantised(graph, form, element))
    cache = cache_dtype(kv)
    if cache is not None:
        scaled = kv.startswith("int")
        graph = _each(graph, lambda rewriter, op: rewriter.cached(op, scaled), Quantised(cache=cache))
    return graph


def formats(weights: str, activations: str | None) -> tuple[WeightFormat | None, str | None]:
    """The format of the weights (None: 16 bits) and the dtype in which x is handed to a product (None: as it is)."""
    known = (*WHOLE, *FORMATS)
    if weights not in known:
        raise _unknown("weights", weights, known)
    if activations is not None and activations not in (*WHOLE, *ELEMENTS):
        raise _unknown("activations", activations, (*WHOLE, *ELEMENTS))
    if weights in WHOLE:
        if activations not in (None, *WHOLE):
            raise TorchperfError(
                f"activations in `{activations}` need quantised weights",
                facts=[("weights", weights)],
                hint="quantise the weights too, or keep activations in bf16",
            )
        return None, None
    form = FORMATS[weights]
    chosen = activations or form.activations[0]
    chosen = "bf16" if chosen in WHOLE else chosen
    if chosen not in form.activations:
        raise TorchperfError(
            f"no kernel multiplies `{weights}` weights with `{chosen}` activations",
            hint=f"activations of `{weights}` weights: {', '.join(form.activations)}",
        )
    return form, ELEMENTS.get(chosen)


def cache_dtype(kv: str) -> str | None:
    """Element type of the cache, None where it stays in 16 bits."""
    if kv not in (*WHOLE, *CACHES):
        raise _unknown("kv", kv, (*WHOLE, *CACHES))
    return CACHES.get(kv)


def cache_bits(kv: str, head_dim: int) -> float:
    """Bits of an element of the cache, its share of scale and zero point counted in: for `graph.cache.kv_bytes`."""
    cache_dtype(kv)
    whole = {"fp8": 8, "int8": 8, "int4": 4}.get(kv, 16)
    return whole + (CACHE_SCALE_BITS / head_dim if kv.startswith("int") else 0)


def routed(graph: Graph) -> Graph:
    """Products of experts told how many experts a token takes (attr `top_k`), where the config says it."""
    top_k = next((v for key in PER_TOKEN if isinstance(v := graph.facts.fact(key), int)), None)
    if top_k is None:
        return graph

    def told(op: Op) -> Op:
        grouped = "grouped_mm" in op.name and op.attr("top_k") is None
        return replace(op, attrs=(*op.attrs, ("top_k", top_k))) if grouped else op

    return replace(graph, blocks=tuple(replace(b, ops=tuple(map(told, b.ops))) for b in graph.blocks))


def _quantised(graph: Graph, form: WeightFormat, element: str | None) -> Quantised:
    experts = next((v for key in EXPERTS if isinstance(v := graph.facts.fact(key), int)), 0)
    only_experts = form.only == "experts"
    return Quantised(
        form.dtype, form.group, form.scale, form.zero_bits, element, experts, only_experts=only_experts, head=form.head
    )


def _each(graph: Graph, step: Callable[[Rewriter, Op], Op], to: Quantised) -> Graph:
    """Every block rewritten op by op; new storages get ids of the program, the same for the same weight."""
    rewriters = [Rewriter(block, to) for block in graph.blocks]
    blocks = tuple(rewriter.rewritten(step) for rewriter in rewriters)
    fresh = graph.num_storages
    ids: dict[tuple[int, str], int] = {}
    segments = []
    parameters = {p.storage: p for p in graph.facts.parameters if p.storage != -1}
    for segment in graph.segments:
        rewriter = rewriters[segment.block]
        storages = list(segment.storages)
        for source, role in rewriter.added:
            storages.append(ids.setdefault((segment.storages[source], role), fresh + len(ids)))
        for slot in rewriter.weights:
            known = parameters.get(segment.storages[slot])
            if known is not None:
                parameters[segment.storages[slot]] = replace(known, dtype=to.dtype)
        segments.append(replace(segment, storages=tuple(storages)))
    scales = _scales(rewriters, graph, ids)
    kept = tuple(parameters.get(p.storage, p) for p in graph.facts.parameters)
    return replace(
        graph, blocks=blocks, segments=tuple(segments), facts=replace(graph.facts, parameters=(*kept, *scales))
    )


def _scales(rewriters: list[Rewriter], graph: Graph, ids: dict[tuple[int, str], int]) -> list[Parameter]:
    """The parameters that scales and zero points are."""
    names = {p.storage: p.names for p in graph.facts.parameters if p.storage != -1}
    found: dict[int, Parameter] = {}
    for segment in graph.segments:
        for (source, role), parameter in rewriters[segment.block].parameters.items():
            storage = ids[segment.storages[source], role]
            paths = tuple(f"{name}_{role}" for name in names.get(segment.storages[source], ()))
            if paths:
                found.setdefault(storage, replace(parameter, names=paths, storage=storage))
    return list(found.values())


def _unknown(what: str, name: str, known: tuple[str, ...]) -> TorchperfError:
    return TorchperfError(f"unknown {what} `{name}`", hint=f"one of {', '.join(known)}")
