"""What one rank of an engine runs in one forward pass: the captured program in its formats, split, and in kernels."""

from __future__ import annotations

from dataclasses import replace

from .annotate import works as annotated
from .fuse import fuse
from .graph.errors import TorchperfError
from .graph.graph import Graph
from .graph.inference import InferencePlan, InferencePrecision
from .graph.op import Op
from .graph.plan import Plan
from .graph.runtime import Runtime
from .partition.expert_parallel import expert_parallel
from .partition.stages import Chunk, chunks_of
from .partition.tensor_parallel import tensor_parallel
from .rewrite import attention, inference
from .rewrite import precision as precisions


def local_program(graph: Graph, plan: InferencePlan, precision: InferencePrecision, runtime: Runtime) -> Graph:
    """A bound graph as one rank runs it, over the whole depth. Raises TorchperfError.

    Order: 16 bits, form of attention, tensor and expert parallelism, attention written out where the runtime does not
    fuse it (a decode step's is one kernel in every engine that fuses at all), experts met, formats, kernels.
    """
    written = runtime.attention == "unfused" and (graph.facts.mode != "decode" or not runtime.fused)
    program = precisions.apply(graph, precisions.precision("bf16"))
    program = attention.apply(program, "written" if written else "flash")
    shared = plan.ep > 1 and plan.attention_dp == 1
    if plan.tp > 1:
        program = tensor_parallel(program, plan.tp, experts=shared).program
        program = _own_rows(program) if shared else program
    if plan.ep > 1:
        if not any("grouped_mm" in op.name for op, _ in program.ops()):
            raise TorchperfError(
                f"`{graph.facts.model}` has no experts to share out", hint=f"leave out `--ep {plan.ep}`"
            )
        if not shared:
            program = expert_parallel(program, plan.ep, stride=plan.tp).program
    if written:
        program = attention.apply(program, "unfused")
    program = inference.quantise(
        _routed(program, plan.ep), precision.weights, precision.activations, precision.kv
    )  # fmt: skip
    return fuse(program, annotated(program)) if runtime.fused else program


def _routed(graph: Graph, ep: int) -> Graph:
    """Products of experts told how many of a rank's own experts a token of any rank takes: k / ep in the mean."""
    known = inference.routed(graph)
    if ep == 1 or known is graph:
        return known

    def told(op: Op) -> Op:
        top_k = op.attr("top_k")
        if top_k is None or "grouped_mm" not in op.name:
            return op
        return replace(op, attrs=tuple((n, top_k / ep if n == "top_k" else v) for n, v in op.attrs))

    return replace(known, blocks=tuple(replace(b, ops=tuple(map(told, b.ops))) for b in known.blocks))


def stages(program: Graph, plan: InferencePlan) -> tuple[Chunk, ...]:
    """The pipeline stages of a rank's program."""
    return chunks_of(program, Plan(pp=plan.pp, pp_split=plan.pp_split))


def _own_rows(graph: Graph) -> Graph:
    """Experts on the devices of tensor parallelism read all rows and compute their own: as many as they write."""

    def own(op: Op) -> Op:
        if "grouped_mm" not in op.name:
            return op
        x, y = op.inputs[0], op.outputs[0]
        if len(x.shape) != 2 or len(y.shape) != 2 or x.shape[0] == y.shape[0]:
            return op
        narrow = replace(x, shape=(y.shape[0], x.shape[1]))
        return replace(op, inputs=(narrow, *op.inputs[1:]))

    return replace(graph, blocks=tuple(replace(b, ops=tuple(map(own, b.ops))) for b in graph.blocks))
